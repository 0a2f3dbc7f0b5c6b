"""Forms that are larger than the framework's defaults: many files, and chunks of a whole book in one field."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

MOST_FILES = 20_000
LARGEST_FIELD = 64 << 20


class _LargeFormRequest(Request):
    def form(self, **_: Any) -> Any:
        """The form, whatever smaller limits the framework asks for."""
        return super().form(max_files=MOST_FILES, max_fields=MOST_FILES, max_part_size=LARGEST_FIELD)


class LargeFormRoute(APIRoute):
    """A route that takes large forms."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler over a request with other limits."""
        handler = super().get_route_handler()

        async def large(request: Request) -> Response:
            return await handler(_LargeFormRequest(request.scope, request.receive))

        return large
