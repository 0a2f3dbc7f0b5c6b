"""create_app(): mounts the routers, opens and closes the parts, renders errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi_offline import FastAPIOffline

from configs import Settings
from server.api import (
    chat,
    conversations,
    graph,
    health,
    jobs,
    knowledge_base,
    openai_chat,
    openai_files,
    openai_shapes,
    retrieval,
    server_state,
    summaries,
    temporary,
)
from server.api.text import clean_text, safe_json
from server.errors import ZhikuError
from server.runtime import Runtime

log = logging.getLogger(__name__)

ROUTES = (
    knowledge_base, temporary, summaries, chat, conversations, retrieval, graph, openai_chat, openai_files,
    server_state, jobs, health,
)  # fmt: skip

DESCRIPTION = """
知识库服务：上传文件，得到带出处的回答。Files in, cited answers out.

The HTTP status is 200 and `code` in the body tells how it went, unless the request itself is malformed (422).
`score` is the squared distance of unit vectors: 0 is the same text, lower is better, 4 is no limit; it means
the same for every vector store. `similarity` is the same from 0 to 1, higher is better.
"""


def _version() -> str:
    try:
        return version("zhiku")
    except PackageNotFoundError:
        return "0"


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application; its parts are opened when it starts."""
    chosen = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Runtime.open(app.state.settings) as runtime:
            app.state.service = runtime.service
            yield

    app = FastAPIOffline(
        title="Zhiku 知库",
        version=_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        strict_content_type=False,  # old clients and `curl --data` send JSON without saying so
    )
    app.state.settings = chosen
    for part in ROUTES:
        app.include_router(part.router)
    if chosen.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=chosen.cors_origins, allow_methods=["*"], allow_headers=["*"])
    app.add_exception_handler(ZhikuError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(Exception, _failed)
    app.add_api_route("/", _home, include_in_schema=False)
    return app


async def _home() -> RedirectResponse:
    return RedirectResponse("/docs")


async def _refused(request: Request, error: Exception) -> Response:
    """An expected error: HTTP 200 with the code in the body, which is where clients look for it; OpenAI's clients
    look at the HTTP status."""
    if isinstance(error, ZhikuError) and request.url.path.startswith("/v1/"):
        status, kind = openai_shapes.status_of(error)
        return JSONResponse(openai_shapes.error_json(error.message, kind), status_code=status)
    code, message = (error.code, error.message) if isinstance(error, ZhikuError) else (500, "")
    body: dict[str, Any] = {"code": code, "msg": clean_text(message), "data": None}
    return JSONResponse(body)


async def _malformed(request: Request, error: Exception) -> Response:
    """A request of the wrong shape: FastAPI's own answer without an echo of the input, which may be anything."""
    found = error.errors() if isinstance(error, RequestValidationError) else ()
    detail = [{"type": item["type"], "loc": item["loc"], "msg": item["msg"]} for item in found]
    if request.url.path.startswith("/v1/"):
        words = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in detail)
        return JSONResponse(openai_shapes.error_json(words, "invalid_request_error"), status_code=400)
    return JSONResponse({"detail": safe_json(jsonable_encoder(detail))}, status_code=422)


async def _failed(request: Request, error: Exception) -> Response:
    """A fault of ours: the log has the reason, the client gets no stack trace."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse({"code": 500, "msg": "内部错误，详见服务日志 / internal error, see the log"}, status_code=500)
