"""Health: what a load balancer, a container and a person ask."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from server.api.deps import ServiceDep
from server.db import jobs

router = APIRouter(tags=["Health"])


@router.get("/health", operation_id="health")
async def health(service: ServiceDep) -> Response:
    """200 when the service can work; 503 when its database is out of reach."""

    def look() -> dict[str, int]:
        with service.context.db.read() as sql:
            sql.execute(text("SELECT 1"))
            return jobs.counts(sql)

    try:
        counts = await service.gates.run_free(look)
    except SQLAlchemyError:
        return JSONResponse(
            {"status": "unavailable", "reason": "数据库不可用 / database out of reach"}, status_code=503
        )
    body: dict[str, Any] = {
        "status": "ok",
        "jobs": counts,
        "llm": service.settings.default_llm,
        "embed_model": service.settings.default_embed_model,
    }
    return JSONResponse(body)
