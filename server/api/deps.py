"""What routes need: the running service."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from server.service import Service


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]
