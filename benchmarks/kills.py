"""What it costs to be killed: a graph is built while its service is killed again and again.

python -m benchmarks.kills --llm URL CORPUS [--kills 20] [--latency 100] [--reports llm|nlp]

CORPUS is a folder of text files. The server at URL speaks the OpenAI protocol, also for embeddings, and has `/stats`,
`/reset` and `/config`. Calls beyond those of a build that nobody disturbs are answers that were paid for and lost: no
more than run at the moment of a kill. Afterwards the graph has to be the same, and `zhiku doctor` has to find nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from benchmarks.process import Client, Server

KB = "killed"
_AT_ONCE = 16


def main() -> None:
    """Build twice, disturbed and not, and print what the kills cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--llm", required=True, help="address of the server, with /v1")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--latency", type=int, default=100, help="milliseconds that each answer takes")
    parser.add_argument("--reports", choices=("llm", "nlp"), default="nlp")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    model = httpx.Client(base_url=given.llm.removesuffix("/v1"), timeout=30)
    model.post("/config", json={"latency_ms": given.latency})
    say = Console(soft_wrap=True, markup=False, highlight=False).print
    quiet = build(given, model, kills=0)
    say(f"undisturbed: {quiet['calls']} calls, {quiet['seconds']:.0f} s, graph {quiet['graph']}")
    killed = build(given, model, kills=given.kills)
    extra = killed["calls"] - quiet["calls"]
    say(f"killed {killed['kills']} times: {killed['calls']} calls ({extra} more; {_AT_ONCE} run at once), "
        f"{killed['seconds']:.0f} s, graph {killed['graph']}")  # fmt: skip
    say(f"the same graph: {quiet['graph'] == killed['graph']}; doctor: {killed['doctor']}")


def build(given: argparse.Namespace, model: httpx.Client, kills: int) -> dict[str, Any]:
    """Upload the corpus, and let the graph be built while the service is killed at random moments."""
    moments = random.Random(given.seed)
    model.post("/reset")
    begun, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), **_settings(given)) as server:
        server.start()
        client = server.client()
        client.post(
            "/knowledge_base/create_knowledge_base", knowledge_base_name=KB, vector_store_type="graph",
            embed_model="vectors",
        )  # fmt: skip
        client.upload(KB, {path.name: path for path in sorted(given.corpus.iterdir())}, wait=False)
        while done < kills and not _is_built(client):
            time.sleep(moments.uniform(0.1, 1.5))
            server.kill()
            done += 1
            server.start()
            client = server.client()
        while not _is_built(client):
            time.sleep(0.2)
        seconds, calls = time.monotonic() - begun, sum(model.get("/stats").json()["calls"].values())
        graph = _digest(client)
        server.stop()
        doctor = subprocess.run(
            [sys.executable, "-m", "server.cli", "doctor", "--data-dir", str(Path(folder) / "data")],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    return {
        "calls": calls, "seconds": seconds, "graph": graph, "kills": done,
        "doctor": "well" if doctor.returncode == 0 else doctor.stdout + doctor.stderr,
    }  # fmt: skip


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "llm_models": [{"name": "llm", "base_url": given.llm, "concurrency": _AT_ONCE}],
        "embedding_models": [{"name": "vectors", "base_url": given.llm, "batch_size": 64}],
        "default_embed_model": "vectors", "graph_extractor": "llm", "graph_concurrency": _AT_ONCE,
        "graph_reports": given.reports,
    }  # fmt: skip


def _is_built(client: Client) -> bool:
    state = client.http.get("/graph/state", params={"knowledge_base_name": KB}).raise_for_status().json()
    files = client.http.get("/knowledge_base/list_file_details", params={"knowledge_base_name": KB}).json()
    read = all(file["docs_count"] and file["state"] == "ready" for file in files)
    return bool(files and read and state["chunks"] == state["done"] and not state["building"]
                and not client.waiting_jobs())  # fmt: skip


def _digest(client: Client) -> str:
    """Tells two graphs apart; files come in no certain order, and with them chunks and what each says."""
    found: list[str] = []
    for kind, shown in _SHOWN.items():
        params: dict[str, str | int] = {"knowledge_base_name": KB, "limit": 1000, "offset": 0}
        while page := client.http.get(f"/graph/{kind}", params=params).raise_for_status().json()[kind]:
            found += [str([sorted(str(one[name]).splitlines()) for name in shown]) for one in page]
            params["offset"] = int(params["offset"]) + len(page)
    return f"{len(found)} items, {hashlib.sha256(chr(10).join(sorted(found)).encode()).hexdigest()[:12]}"


_SHOWN = {
    "entities": ("name", "type", "description"),
    "relations": ("source", "target", "label", "description", "weight"),
    "communities": ("id", "level", "parent", "entities"),
}


if __name__ == "__main__":
    main()
