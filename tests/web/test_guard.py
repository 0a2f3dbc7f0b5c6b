"""The guard reaches public addresses and what was allowed, and nothing else, whatever a name or a redirect says."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import logging
import shutil
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from server.errors import InvalidRequest
from server.web.addresses import is_public
from server.web.guard import Guard, Resolver, WebError
from tests.conftest import ThreadServer

PUBLIC = "93.184.216.34"


async def page(request: Request) -> Response:
    return PlainTextResponse(f"你好 {request.headers['host']}")


async def to(url: str) -> Response:
    return RedirectResponse(url)


async def loop() -> Response:
    return RedirectResponse("/loop")


async def long() -> Response:
    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b"x" * 1000

    return StreamingResponse(blocks())


async def slow() -> Response:
    async def drops() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x"
            await asyncio.sleep(0.05)

    return StreamingResponse(drops())


async def bomb() -> Response:
    return Response(gzip.compress(b"0" * 1_000_000), headers={"content-encoding": "gzip"})


async def odd() -> Response:
    return Response(b"x", headers={"content-encoding": "zstd"})


def app() -> FastAPI:
    site = FastAPI()
    for route in (page, to, loop, long, slow, bomb, odd):
        site.add_api_route(f"/{route.__name__}", route, response_model=None)
    return site


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadServer(app()) as server:
        yield server.port


def names(**known: str | list[str]) -> Resolver:
    """A resolver that knows these hosts, written with `_` for the dot; a list gives one address at a time."""

    async def lookup(host: str, _: int) -> Sequence[str]:
        found = known.get(host.replace(".", "_"))
        if found is None:
            raise OSError("no such host")
        return [found] if isinstance(found, str) else [found.pop(0)]

    return lookup


def site_guard(port: int, **more: object) -> Guard:
    """Allowed to reach the test server by the name `site.test`."""
    return Guard([f"site.test:{port}"], resolver=names(site_test="127.0.0.1", evil_test="127.0.0.1"), **more)  # type: ignore[arg-type]


class Recorder(httpx2.AsyncBaseTransport):
    """Keeps the requests that would have gone out."""

    def __init__(self, broken: Sequence[str] = ()) -> None:
        self.requests: list[httpx2.Request] = []
        self._broken = broken

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if request.url.host in self._broken:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, text="fine")


# ---- which addresses


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "2002:5db8:d822::1"])
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "100.100.100.200", "198.18.0.1", "192.0.0.192", "192.0.2.1", "224.0.0.1", "239.1.1.1"),
        *("240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "fec0::1", "::127.0.0.1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1"),
        *("2001:0:7f00:1::", "64:ff9b::a9fe:a9fe"),
    ],
)
def test_addresses_inside(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "0", "[::1]", "[::ffff:127.0.0.1]"),
        *("[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "169.254.169.254", "localhost", "LOCALHOST.", "inside.test"),
        *("１２７.0.0.1", "127。0。0。1", "user:pass@127.0.0.1"),
    ],
)
async def test_no_spelling_leads_inside(host: str) -> None:
    recorder = Recorder()
    guard = Guard(resolver=names(localhost="127.0.0.1", inside_test="10.0.0.1"), inner=recorder)
    with pytest.raises(InvalidRequest, match="forbidden|no address"):
        await guard.fetch("GET", f"http://{host}/latest/meta-data")
    assert recorder.requests == []
    await guard.close()


@pytest.mark.parametrize(
    "url", ["ftp://example.com/", "file:///etc/passwd", "gopher://x/", "/etc/passwd", "http://", "x" * 70_000]
)
async def test_only_http_and_https(url: str) -> None:
    guard = Guard(resolver=names(), inner=Recorder())
    with pytest.raises(InvalidRequest):
        await guard.fetch("GET", url)
    await guard.close()


async def test_one_address_inside_is_enough_to_refuse() -> None:
    async def both(host: str, port: int) -> list[str]:
        return [PUBLIC, "10.0.0.1"]

    guard = Guard(resolver=both, inner=Recorder())
    with pytest.raises(InvalidRequest):
        await guard.fetch("GET", "http://mixed.test/")
    await guard.close()


# ---- the connection


async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    recorder = Recorder()
    guard = Guard(resolver=names(rebind_test=[PUBLIC, "127.0.0.1"]), inner=recorder)
    await guard.fetch("GET", "https://rebind.test/a?b=c")
    (sent,) = recorder.requests
    assert str(sent.url) == f"https://{PUBLIC}/a?b=c"
    assert sent.headers["host"] == "rebind.test"
    assert sent.extensions["sni_hostname"] == "rebind.test"
    with pytest.raises(InvalidRequest):
        await guard.fetch("GET", "https://rebind.test/a")
    assert len(recorder.requests) == 1
    await guard.close()


async def test_a_name_in_another_script_is_asked_for_in_its_plain_form() -> None:
    asked: list[str] = []

    async def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return [PUBLIC]

    recorder = Recorder()
    guard = Guard(resolver=lookup, inner=recorder)
    await guard.fetch("GET", "https://bücher.test/")
    assert asked == ["xn--bcher-kva.test"]
    assert recorder.requests[0].extensions["sni_hostname"] == "xn--bcher-kva.test"
    await guard.close()


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"hello {self.headers['host']}".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def https_port(tmp_path: Path) -> Iterator[int]:
    """A server with a certificate for `site.test`."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("the command openssl is needed to make a certificate")
    names = ["-subj", "/CN=site.test", "-addext", "subjectAltName=DNS:site.test"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(made, check=True, capture_output=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Greeting)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(10)


async def test_certificates_are_verified_for_the_name(https_port: int, tmp_path: Path) -> None:
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    inner = httpx2.AsyncHTTPTransport(verify=trust, trust_env=False)
    resolver = names(site_test="127.0.0.1", evil_test="127.0.0.1")
    guard = Guard(["site.test", "evil.test", "127.0.0.1"], resolver=resolver, inner=inner)
    page = await guard.fetch("GET", f"https://site.test:{https_port}/")
    assert page.text == f"hello site.test:{https_port}"
    for host in ("evil.test", "127.0.0.1"):
        with pytest.raises(WebError, match="cannot reach"):
            await guard.fetch("GET", f"https://{host}:{https_port}/")
    await guard.close()


async def test_the_next_address_is_tried_when_one_is_dead() -> None:
    async def two(host: str, port: int) -> list[str]:
        return [PUBLIC, "93.184.216.35"]

    recorder = Recorder(broken=[PUBLIC])
    guard = Guard(resolver=two, inner=recorder)
    assert (await guard.fetch("GET", "http://two.test/")).text == "fine"
    recorder = Recorder(broken=[PUBLIC, "93.184.216.35"])
    with pytest.raises(WebError):
        await Guard(resolver=two, inner=recorder).fetch("GET", "http://two.test/")
    assert len(recorder.requests) == 2
    await guard.close()


async def test_what_is_allowed_is_reached_by_its_name(port: int) -> None:
    guard = site_guard(port)
    page = await guard.fetch("GET", f"http://site.test:{port}/page")
    assert (page.status, page.text) == (200, f"你好 site.test:{port}")
    for url in (f"http://evil.test:{port}/page", f"http://127.0.0.1:{port}/page", "http://site.test:1/page"):
        with pytest.raises(InvalidRequest):
            await guard.fetch("GET", url)
    await guard.close()


@pytest.mark.parametrize("allowed", ["127.0.0.0/8", "127.0.0.1", "evil.test", "EVIL.TEST"])
async def test_networks_addresses_and_hosts_can_be_allowed(port: int, allowed: str) -> None:
    guard = Guard([allowed], resolver=names(evil_test="127.0.0.1"))
    assert (await guard.fetch("GET", f"http://evil.test:{port}/page")).status == 200
    await guard.close()


async def test_proxies_of_the_environment_are_not_used(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    guard = site_guard(port)
    assert (await guard.fetch("GET", f"http://site.test:{port}/page")).status == 200
    await guard.close()


# ---- redirects and limits


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:{port}/page", "http://evil.test:{port}/page", "file:///etc/passwd"]
)
async def test_every_redirect_is_checked(port: int, target: str) -> None:
    guard = site_guard(port)
    there = await guard.fetch("GET", f"http://site.test:{port}/to", params={"url": "/page"})
    assert there.text.startswith("你好")
    assert there.url.endswith("/page")
    with pytest.raises(InvalidRequest):
        await guard.fetch("GET", f"http://site.test:{port}/to", params={"url": target.format(port=port)})
    stayed = await guard.fetch("GET", f"http://site.test:{port}/to", params={"url": "http://x.test"}, follow=False)
    assert stayed.status == 307
    await guard.close()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/loop", "redirects too often"),
        ("/long", "more than 100000 bytes"),
        ("/bomb", "more than 100000 bytes"),
        ("/slow", "in time"),
        ("/odd", "compresses"),
    ],
)
async def test_answers_have_limits(port: int, path: str, words: str) -> None:
    guard = site_guard(port, max_bytes=100_000, timeout=1.0 if path == "/slow" else 30.0)
    with pytest.raises(WebError, match=words):
        await guard.fetch("GET", f"http://site.test:{port}{path}", params={"key": "s3cret"})
    await guard.close()


async def test_errors_have_words_and_no_secret(port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    guard = Guard(["127.0.0.1"], resolver=names())
    with pytest.raises(WebError) as unknown:
        await guard.fetch("GET", "http://nowhere.test/?key=s3cret")
    with pytest.raises(WebError) as closed:
        await guard.fetch("GET", "http://127.0.0.1:1/?key=s3cret")
    for error in (unknown, closed):
        assert "无法访问" in error.value.message
        assert "s3cret" not in error.value.message
    assert "s3cret" not in caplog.text
    await guard.close()
