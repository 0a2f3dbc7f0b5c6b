"""Search engines against stand-ins that answer as the real ones do, in good days and bad."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from configs import SearchEngineSettings
from server.errors import InvalidRequest, NotFound
from server.web.base import plain_text
from server.web.engines import SearchEngines, WebResult
from server.web.guard import WebError
from tests.conftest import ThreadServer

DUCK_PAGE = """<html><body><div id="links">
<div class="result results_links result--ad"><a class="result__a" href="https://ads.test/">Buy</a></div>
<div class="result results_links web-result"><div class="links_main"><h2 class="result__title">
<a rel="nofollow" class="result__a" href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fa.test%2Fx%3Fq%3D1%26r%3D2&amp;rut=9">A <b>page</b></a></h2>
<a class="result__snippet" href="#">It says <b>知库</b> &amp; more<script>x()</script>.</a></div></div>
<div class="result results_links web-result"><a class="result__a" href="https://b.test/">B</a></div>
<div class="result results_links web-result"><a class="result__a" href="javascript:alert(1)">C</a></div>
<div class="result results_links web-result"><a class="result__a" href="https://b.test/">B again</a></div>
</div></body></html>"""
DUCK_NOTHING = '<div class="result result--no-result"><div class="no-results">No results.</div></div>'
DUCK_CAPTCHA = (
    '<form id="challenge-form"><div class="anomaly-modal__modal">Unfortunately, bots use DuckDuckGo too.</div></form>'
)
BING = {
    "_type": "SearchResponse",
    "webPages": {
        "value": [
            {"name": "A &amp; B", "url": "https://a.test/", "snippet": "so <b>bold</b>\n\u200band\x00 more"},
            {"name": None, "url": "https://b.test/"},
            {"name": "no address"},
            "nonsense",
        ]
    },
}
EXA = {"requestId": "1", "results": [{"title": "A", "url": "https://a.test/", "text": "long text"}]}
SEARX = {
    "query": "q",
    "results": [{"title": "A", "url": "https://a.test/", "content": "text"}],
    "unresponsive_engines": [],
}
GOOD: dict[str, Response] = {
    "duckduckgo": HTMLResponse(DUCK_PAGE),
    "bing": JSONResponse(BING),
    "metaphor": JSONResponse(EXA),
    "searxng": JSONResponse(SEARX),
}


class StandIn:
    """Answers with what the test put into `answers`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: deque[Response] = deque()
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.delay = 0.0
        self.port = 0

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/{path:path}", self.answer, methods=["GET", "POST"], response_model=None)
        return app

    async def answer(self, request: Request) -> Response:
        if request.method == "GET":
            given: dict[str, Any] = dict(request.query_params)
        elif "json" in request.headers["content-type"]:
            given = await request.json()
        else:
            given = {"form": (await request.body()).decode()}
        self.asked.append((request.url.path, given, dict(request.headers)))
        answers = self.answers  # of this test: one that gave up leaves a request that is answered during the next
        await asyncio.sleep(self.delay)
        return answers.popleft()


@pytest.fixture(scope="module")
def running() -> Iterator[StandIn]:
    stand_in = StandIn()
    with ThreadServer(stand_in.app()) as server:
        stand_in.port = server.port
        yield stand_in


@pytest.fixture
def stand_in(running: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    running.answers, running.asked = deque(), []
    running.delay = 0.0
    monkeypatch.setenv("BING_SUBSCRIPTION_KEY", "s3cret-bing")
    monkeypatch.setenv("METAPHOR_API_KEY", "s3cret-exa")
    return running


def settings_for(port: int, **changes: Any) -> SearchEngineSettings:
    site = f"http://127.0.0.1:{port}"
    values: dict[str, Any] = {
        "duckduckgo_url": f"{site}/html/",
        "bing_url": f"{site}/v7.0/search",
        "metaphor_url": f"{site}/search",
        "searxng_url": f"{site}/searx/",
        "allow": ("127.0.0.0/8",),
        **changes,
    }
    return SearchEngineSettings(**values)


@pytest.fixture
async def engines(stand_in: StandIn) -> AsyncIterator[SearchEngines]:
    made = SearchEngines(settings_for(stand_in.port))
    yield made
    await made.close()


# ---- what they find


async def test_duckduckgo(stand_in: StandIn, engines: SearchEngines) -> None:
    stand_in.answers.append(GOOD["duckduckgo"])
    found = await engines.get("duckduckgo").search("  知库 \n是什么", 10)
    assert found == [
        WebResult("A page", "https://a.test/x?q=1&r=2", "It says 知库 & more ."),
        WebResult("B", "https://b.test/", ""),
    ]
    assert stand_in.asked[0][1]["form"].startswith("q=%E7%9F%A5%E5%BA%93+%E6%98%AF")


async def test_bing(stand_in: StandIn, engines: SearchEngines) -> None:
    stand_in.answers.append(GOOD["bing"])
    assert await engines.get("bing").search("q", 5) == [
        WebResult("A & B", "https://a.test/", "so bold and more"),
        WebResult("https://b.test/", "https://b.test/", ""),
    ]
    path, given, headers = stand_in.asked[0]
    assert (path, given["q"], given["count"]) == ("/v7.0/search", "q", "5")
    assert headers["ocp-apim-subscription-key"] == "s3cret-bing"


async def test_metaphor(stand_in: StandIn, engines: SearchEngines) -> None:
    stand_in.answers.append(GOOD["metaphor"])
    assert await engines.get("metaphor").search("q", 5) == [WebResult("A", "https://a.test/", "long text")]
    path, given, headers = stand_in.asked[0]
    assert (path, given["query"], given["numResults"]) == ("/search", "q", 5)
    assert headers["x-api-key"] == "s3cret-exa"


async def test_searxng(stand_in: StandIn, engines: SearchEngines) -> None:
    stand_in.answers.append(GOOD["searxng"])
    assert await engines.get("searxng").search("q", 5) == [WebResult("A", "https://a.test/", "text")]
    assert stand_in.asked[0][:2] == ("/searx/search", {"q": "q", "format": "json"})


@pytest.mark.parametrize(("name", "nothing"), [("duckduckgo", HTMLResponse(DUCK_NOTHING)), ("bing", JSONResponse({"_type": "SearchResponse"})), ("metaphor", JSONResponse({"results": []})), ("searxng", JSONResponse({"results": []}))])  # fmt: skip
async def test_nothing_found_is_an_empty_list(
    stand_in: StandIn, engines: SearchEngines, name: str, nothing: Response
) -> None:
    stand_in.answers.append(nothing)
    assert await engines.get(name).search("q", 5) == []


async def test_no_more_than_wanted(stand_in: StandIn, engines: SearchEngines) -> None:
    stand_in.answers.extend([GOOD["duckduckgo"]] * 2)
    assert len(await engines.get("duckduckgo").search("q", 1)) == 1
    assert len(await engines.get("duckduckgo").search("q" * 1000, 0)) == 1
    assert len(stand_in.asked[1][1]["form"]) < 500


# ---- what they say when they fail


@pytest.mark.parametrize("name", ["duckduckgo", "bing", "metaphor", "searxng"])
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Response("oops", 500), "HTTP 500"),
        (Response("s3cret-bing is wrong", 401), "HTTP 401, check key"),
        (Response("slow down", 429), "try again later"),
        (HTMLResponse("<p>a page of something else</p>"), "not JSON|cannot be read"),
        (Response(b""), "not JSON|cannot be read"),
    ],
)
async def test_failures_have_words(
    stand_in: StandIn, engines: SearchEngines, name: str, answer: Response, words: str
) -> None:
    stand_in.answers.append(answer)
    with pytest.raises(WebError, match=words) as error:
        await engines.get(name).search("q", 3)
    assert "搜索失败" in error.value.message
    assert "s3cret" not in error.value.message


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("duckduckgo", HTMLResponse(DUCK_CAPTCHA), "captcha"),
        ("duckduckgo", HTMLResponse("<p>wait</p>", 202), "captcha"),
        (
            "bing",
            JSONResponse({"_type": "ErrorResponse", "errors": [{"message": "quota <b>exceeded</b>"}]}),
            "quota exceeded",
        ),
        ("bing", JSONResponse({"error": {"code": "401", "message": "no access"}}), "no access"),
        ("bing", JSONResponse({"webPages": "x"}), "another shape"),
        ("bing", JSONResponse([1]), "another shape"),
        ("bing", RedirectResponse("http://elsewhere.test/"), "HTTP 307"),
        ("metaphor", JSONResponse({"error": "out of credits"}), "out of credits"),
        ("metaphor", JSONResponse({}), "another shape"),
        ("searxng", Response("", 403), "allow the format json"),
        ("searxng", JSONResponse({"results": [], "unresponsive_engines": [["google", "timeout"]]}), "google"),
        ("searxng", JSONResponse({"results": None}), "another shape"),
    ],
)
async def test_an_engine_that_reports_an_error_found_not_nothing(
    stand_in: StandIn, engines: SearchEngines, name: str, answer: Response, words: str
) -> None:
    stand_in.answers.append(answer)
    with pytest.raises(WebError, match=words):
        await engines.get(name).search("q", 3)


async def test_a_slow_engine_is_given_up(stand_in: StandIn) -> None:
    engines = SearchEngines(settings_for(stand_in.port, timeout=0.3))
    stand_in.delay = 3.0
    stand_in.answers.append(GOOD["bing"])
    with pytest.raises(WebError, match="in time"):
        await engines.get("bing").search("q", 3)
    await engines.close()


async def test_nothing_to_search_for_asks_nobody(stand_in: StandIn, engines: SearchEngines) -> None:
    with pytest.raises(InvalidRequest):
        await engines.get("bing").search(" \n ", 3)
    assert stand_in.asked == []


# ---- which there are, and where they may be


async def test_refusals_are_those_of_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("BING_SUBSCRIPTION_KEY", "METAPHOR_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    engines = SearchEngines(SearchEngineSettings())
    assert engines.names == ["duckduckgo", "bing", "metaphor", "searxng"]
    assert engines.usable == ["duckduckgo"]
    for name, words in {
        "gopher": "未支持搜索引擎 gopher",
        "bing": "要使用Bing搜索引擎，需要设置 `BING_SUBSCRIPTION_KEY`",
        "metaphor": "要使用Metaphor搜索引擎，需要设置 `METAPHOR_API_KEY`",
        "searxng": "要使用SearXNG搜索引擎，需要设置 `searxng_url`",
    }.items():
        with pytest.raises(NotFound) as refused:
            engines.get(name)
        assert (refused.value.code, refused.value.message) == (404, words)
    await engines.close()


async def test_only_a_searxng_of_ones_own_may_be_inside_without_more_words(stand_in: StandIn) -> None:
    engines = SearchEngines(settings_for(stand_in.port, allow=()))
    stand_in.answers.append(GOOD["searxng"])
    assert len(await engines.get("searxng").search("q", 3)) == 1
    inside = SearchEngines(settings_for(stand_in.port, allow=(), searxng_url=None))
    with pytest.raises(InvalidRequest, match="forbidden"):
        await inside.get("bing").search("q", 3)
    await engines.close()
    await inside.close()


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a <b>b</b>\tc", "a b c"),
        ("&lt;script&gt;alert(1)&lt;/script&gt;x", "x"),
        ("at &lt;noon&gt; &lt;b&gt;sharp&lt;/b&gt;", "at <noon> sharp"),
        ("1 < 2 && 3 > 2", "1 < 2 && 3 > 2"),
        ("<style>p{}</style><!-- c -->x<img src=x onerror=alert(1)>", "x"),
        ("x" * 9000, "x" * 4000),
    ],
)
def test_text_is_plain(text: str, plain: str) -> None:
    assert plain_text(text) == plain
