"""Many streams at once, against a service process and a model on real ports."""

from __future__ import annotations

import asyncio
import json

import httpx

from server.models.fake_llm import FakeLLM, Reply
from tests.conftest import ServerProcess, llm_model

STREAMS = 200
WORDS = [f"word{n} " for n in range(20)]


def test_two_hundred_streams_hold(process: ServerProcess, llm: FakeLLM) -> None:
    process.write(llm_models=[llm_model(llm, concurrency=STREAMS)])
    process.start()
    api = process.api()
    api.create("kb")
    api.upload("kb", {"tide.txt": "The tide table hangs in the office."})
    llm.default = Reply(WORDS, delay=0.05)

    async def ask(client: httpx.AsyncClient) -> str:
        body = {"knowledge_base_name": "kb", "query": "tide table", "stream": True, "score_threshold": 4}
        said = ""
        async with client.stream("POST", "/chat/knowledge_base_chat", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    said += json.loads(line[6:]).get("answer", "")
        return said

    async def all_at_once() -> list[str]:
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(base_url=process.url, timeout=300, limits=limits) as client:
            return list(await asyncio.gather(*(ask(client) for _ in range(STREAMS))))

    assert asyncio.run(all_at_once()) == ["".join(WORDS)] * STREAMS
    assert api.http.get("/health").status_code == 200
