"""Start-up, memory, and searches over HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bench import KB, Bench, Row, percentile, spread
from benchmarks.process import Client, Server
from configs.settings import EMBEDDED
from server.models.e5 import E5Model

_ROUNDS = 3
_CLIENTS = 4
_EMBEDDED_KB = "embedded"


def startup(bench: Bench) -> list[Row]:
    """From starting the process to the first healthy answer, and to the first search."""
    folder = bench.built(bench.small)
    walls, cpus, firsts = [], [], []
    for _ in range(bench.size(5, 2)):
        with Server(folder) as server:
            walls.append(server.start())
            cpus.append(server.usage().cpu)
            started = time.monotonic()
            server.client().search(KB, bench.corpus.queries(1)[0])
            firsts.append(time.monotonic() - started)
    return [
        Row(
            f"start-up to the first healthy answer, {bench.small} chunks on disk",
            "< 3 s",
            f"{percentile(walls, 0.5):.2f} s",
            f"median of {len(walls)} ({min(walls):.2f} to {max(walls):.2f} s), CPU {percentile(cpus, 0.5):.2f} s; "
            f"then the first search {percentile(firsts, 0.5) * 1e3:.0f} ms",
        )
    ]


def memory(bench: Bench) -> list[Row]:
    """Resident memory after the start and after searches, the embedding model loaded too."""
    folder = bench.with_model(bench.built(bench.large))
    with Server(folder) as server:
        server.start()
        idle, idle_private = server.resident(), server.private()
        client = server.client()
        for query in bench.corpus.queries(100):
            client.search(KB, query)
        searched = server.resident()
        _ensure_embedded(bench, client)
        loaded, private = server.resident(), server.private()
    return [
        Row("RSS idle", "< 500 MB", f"{idle:.0f} MB", f"{idle_private:.0f} MB of it private"),
        Row(
            f"RSS with {bench.large} chunks, after searches",
            "< 1 GB",
            f"{loaded:.0f} MB",
            f"{private:.0f} MB of it private; {searched:.0f} MB before the embedding model was loaded as well",
        ),
    ]


def _ensure_embedded(bench: Bench, client: Client) -> None:
    """Let the server load the embedded model, as it does where that is the one in use."""
    names = client.http.get("/knowledge_base/list_knowledge_bases").json()["data"]
    if _EMBEDDED_KB not in names:
        client.create(_EMBEDDED_KB, EMBEDDED)
        client.upload(_EMBEDDED_KB, {"a.txt": bench.corpus.mixed(20_000, 0)})
    client.search(_EMBEDDED_KB, "what is this about")


def search(bench: Bench) -> list[Row]:
    """`search_docs` over HTTP in a smaller and in a larger knowledge base."""
    embedding = _query_embedding(bench)
    aims = ("< 8 / 20 ms", "< 15 / 40 ms")
    sizes = (bench.small, bench.large)
    return [_search(bench, chunks, aim, embedding) for chunks, aim in zip(sizes, aims, strict=True)]


def _search(bench: Bench, chunks: int, aim: str, embedding: float) -> Row:
    queries = bench.corpus.queries(bench.size(400, 60))
    with Server(bench.built(chunks)) as server:
        server.start()
        client = server.client()
        timed(client, KB, queries[:40])
        before = server.usage()
        rounds = [timed(client, KB, queries) for _ in range(_ROUNDS)]
        cpu = (server.usage() - before).cpu / (_ROUNDS * len(queries))
        crowd = _crowd(server, queries)
    # Each question's quickest round: what the machine did meanwhile does not count, what the question costs does.
    best = [min(times) for times in zip(*rounds, strict=True)]
    return Row(
        f"search_docs, hybrid, {chunks} chunks, p50 / p95 without the question's embedding",
        aim,
        f"{spread(best)} ms",
        f"each of {len(queries)} questions at its quickest of {_ROUNDS}; the rounds as they were: "
        f"{', '.join(spread(times) for times in rounds)}; server CPU {cpu * 1e3:.1f} ms a search; {_CLIENTS} clients "
        f"at once: {spread(crowd)}; embedding a question takes {embedding * 1e3:.1f} ms more",
    )


def timed(client: Client, name: str, queries: Sequence[str]) -> list[float]:
    """Seconds that each search takes, one after the other."""
    found = []
    for query in queries:
        started = time.perf_counter()
        client.search(name, query)
        found.append(time.perf_counter() - started)
    return found


def _crowd(server: Server, queries: Sequence[str]) -> list[float]:
    """Seconds that each search takes when several clients ask at once."""
    with ThreadPoolExecutor(_CLIENTS) as pool:
        parts = [queries[at::_CLIENTS] for at in range(_CLIENTS)]
        times = pool.map(lambda part: timed(server.client(), KB, part), parts)
    return [seconds for part in times for seconds in part]


def _query_embedding(bench: Bench) -> float:
    """Median seconds that the embedded model takes for a question."""
    model = E5Model(bench.models.parent)
    times = []
    for query in bench.corpus.queries(60):
        started = time.perf_counter()
        model.embed_query(query)
        times.append(time.perf_counter() - started)
    return percentile(times[10:], 0.5)
