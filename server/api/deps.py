"""What routes need: the running service, and answers for common refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from configs import Settings
from server.api.gates import Gates
from server.chat.service import ChatService
from server.ingest.jobs import JobRunner
from server.knowledge_base.context import KBContext
from server.knowledge_base.operations import Operations


@dataclass(frozen=True)
class Service:
    """All parts of the running service."""

    settings: Settings
    context: KBContext
    operations: Operations
    runner: JobRunner
    chat: ChatService
    gates: Gates

    def public_url(self, request: Request) -> str:
        """Base of links to this service, with a slash at the end."""
        base = self.settings.public_url or str(request.base_url)
        return base.rstrip("/") + "/"


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]
