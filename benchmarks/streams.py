"""Answers as they are written: the first event, and a hundred at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.bench import KB, Bench, Row, percentile, spread
from benchmarks.process import Model, Server

_STALL = 0.2
_TOKEN = 0.02


@dataclass
class _Stream:
    """When the model wrote each token, and when the client had it."""

    written: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)

    def delays(self) -> list[float]:
        """Seconds that each token was under way."""
        return [there - here for here, there in zip(self.written, self.arrived, strict=True)]


def first(bench: Bench) -> list[Row]:
    """How long the first token is under way from the model to the client."""
    with _chat(bench, tokens=5) as (server, _):
        found = [asyncio.run(_ask(server.port, query)) for query in bench.corpus.queries(bench.size(100, 15))]
    delays = [stream.delays()[0] for stream in found]
    later = [delay for stream in found for delay in stream.delays()[1:]]
    return [
        Row(
            "first event after the model's first token",
            "< 10 ms",
            f"{percentile(delays, 0.5) * 1e3:.1f} ms",
            f"p50 / p95 {spread(delays)} ms of {len(delays)} answers, max {max(delays) * 1e3:.1f}; "
            f"the tokens after it {spread(later)} ms",
        )
    ]


def streams(bench: Bench) -> list[Row]:
    """A hundred answers at once from a model that writes a token every 20 ms."""
    count, tokens = bench.size(100, 20), bench.size(500, 50)
    with _chat(bench, tokens) as (server, model):
        queries = bench.corpus.queries(count)
        before, before_model = server.usage(), model.usage()
        mine = time.process_time()
        found, paused = asyncio.run(_ask_all(server.port, queries))
        used, used_model = server.usage() - before, model.usage() - before_model
        mine = time.process_time() - mine
    gaps = [gap for stream in found for gap in _gaps(stream.arrived)]
    own = [gap for stream in found for gap in _gaps(stream.written)]
    late = [delay for stream in found for delay in stream.delays()]
    stalled = sum(max(_gaps(stream.arrived)) > _STALL for stream in found)
    complete = sum(len(stream.arrived) == tokens for stream in found)
    return [
        Row(
            f"{count} streams at once, {_TOKEN * 1e3:.0f} ms a token",
            "no stall > 200 ms; server < 1 core",
            f"{stalled} stalled; {used.cpu / used.wall:.2f} cores",
            f"{complete} of {count} complete, {sum(len(s.arrived) for s in found) / used.wall:.0f} events/s over "
            f"{used.wall:.0f} s; longest gap {max(gaps) * 1e3:.0f} ms (of the model itself {max(own) * 1e3:.0f}, of "
            f"the client's idle clock {paused * 1e3:.0f}); "
            f"under way p50 / p95 {spread(late)} ms, max {max(late) * 1e3:.0f}; cores: model "
            f"{used_model.cpu / used.wall:.2f}, this client {mine / used.wall:.2f}",
        )
    ]


def _gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in zip(times, times[1:], strict=False)]


@contextmanager
def _chat(bench: Bench, tokens: int) -> Iterator[tuple[Server, Model]]:
    """A server with a small knowledge base and its model; a first answer has been given."""
    folder = bench.fresh("chat")
    with Model(folder, tokens, _TOKEN) as model:
        model.start()
        with Server(folder, llm_models=[model.settings()]) as server:
            server.start()
            client = server.client()
            client.create(KB)
            client.upload(KB, {"a.txt": bench.corpus.mixed(20_000, 1)})
            asyncio.run(_ask(server.port, "the first answer imports what others need"))
            yield server, model


async def _ask_all(port: int, queries: Sequence[str]) -> tuple[list[_Stream], float]:
    """All answers, and the longest time that the machine kept this process from looking at the clock."""
    clock = asyncio.create_task(_longest_tick())
    found = await asyncio.gather(*(_ask(port, query) for query in queries))
    clock.cancel()
    return found, (await asyncio.gather(clock))[0]


async def _longest_tick() -> float:
    longest, last = 0.0, time.monotonic()
    try:
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        return longest


async def _ask(port: int, query: str) -> _Stream:
    """One streamed answer. Over a bare socket: a client library would need a core for a hundred streams."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"knowledge_base_name": KB, "query": query, "stream": True}).encode()
    head = (
        f"POST /chat/knowledge_base_chat HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    stream = _Stream()
    try:
        while line := await reader.readline():
            if line.startswith(b'data: {"answer"'):
                stream.arrived.append(time.monotonic())
                stream.written.append(float(json.loads(line[6:])["answer"]))
            elif line.startswith(b'data: {"code"'):
                raise RuntimeError(line.decode())
    finally:
        writer.close()
        await writer.wait_closed()
    return stream
