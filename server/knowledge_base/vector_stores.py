"""Knowledge bases and files as OpenAI's clients know them: a vector store is a knowledge base, uploaded files wait in a
hidden library until they are put into one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from server.db import files, kbs
from server.db.tables import new_uid
from server.domain import KnowledgeBase, StoredFile
from server.errors import AlreadyExists, InvalidRequest, NotFound
from server.ingest.pipeline import SplitOptions
from server.knowledge_base.context import KBContext
from server.knowledge_base.expiry import is_over
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.operations import Operations, Upload
from server.knowledge_base.service import KBService
from server.names import file_label, kb_label

LIBRARY = "library"
PURPOSE = "purpose"
_MOST_SAME_NAMES = 1000
_RENEW_AFTER = 3600.0
"""Seconds of use that are not worth a transaction."""


class VectorStores:
    """What the routes under /v1 do with knowledge bases and files. Ids are the uids of rows."""

    def __init__(self, context: KBContext, operations: Operations) -> None:
        self._context = context
        self._operations = operations

    # ---- uploaded files

    def uploaded(self) -> KBService:
        """Where uploaded files wait."""
        service = KBServiceFactory.get_service_by_name(LIBRARY, LIBRARY)
        if service is None:
            service = KBServiceFactory.get_default(LIBRARY)
            try:
                service.create_kb(kind=LIBRARY)
            except AlreadyExists:  # made by another request in the same moment
                return self.uploaded()
        return service

    def add_file(self, name: str, stream: BinaryIO, purpose: str) -> StoredFile:
        """Keep a file; many may have the same name.

        Raises:
            InvalidRequest: it is too large; InvalidName: its name cannot be a label.
        """
        base, uid, library = PurePosixPath(file_label(name)).name, new_uid(), self.uploaded()
        options = self._context.split_options
        sent = [Upload(f"{uid}/{base}", stream)]
        outcome = self._operations.upload(library, sent, options, vectorise=False)
        if outcome.failed:
            raise InvalidRequest("; ".join(outcome.failed.values()))
        file = library.find_file(f"{uid}/{base}")
        with self._context.db.write() as sql:
            files.set_uid(sql, file.id, uid)
            files.set_attributes(sql, file.id, {PURPOSE: purpose})
        return self.file(uid)

    def list_uploaded(self) -> list[StoredFile]:
        """All files that were uploaded for some use."""
        return self.members(self.uploaded().kb())

    def file(self, uid: str) -> StoredFile:
        """An uploaded file.

        Raises:
            NotFound: there is none of that id.
        """
        return self._find_file(self.uploaded(), uid)

    def drop_file(self, uid: str) -> None:
        """Delete an uploaded file, in all knowledge bases too that it was put into."""
        library = self.uploaded()
        found = self._find_file(library, uid)
        with self._context.db.read() as sql:
            everywhere = [(kb, files.find_uid(sql, kb.id, uid)) for kb in kbs.list_all(sql)]
        for kb, file in everywhere:
            if file is not None:
                service = KBServiceFactory.get_service_of(kb)
                self._operations.delete(service, [file.name], delete_content=True)
        library.delete_doc(found, delete_content=True)
        library.settle()

    def _find_file(self, service: KBService, uid: str) -> StoredFile:
        kb = service.kb()
        with self._context.db.read() as sql:
            found = files.find_uid(sql, kb.id, uid)
        if found is None:
            raise NotFound(f"没有文件 / there is no file file-{uid[:40]}")
        return found

    # ---- vector stores

    def create(self, name: str | None, attributes: Mapping[str, Any], expires: float | None) -> KBService:
        """A new knowledge base; a taken name gets a number."""
        wanted = kb_label(name or "") or f"vector store {new_uid()[:8]}"
        for number in range(1, _MOST_SAME_NAMES):
            service = KBServiceFactory.get_default(wanted if number == 1 else f"{wanted[:90]} ({number})")
            try:
                kb = service.create_kb(expires=expires)
            except AlreadyExists:
                continue
            with self._context.db.write() as sql:
                kbs.set_attributes(sql, kb.id, attributes)
            return service
        raise AlreadyExists(f"名称已被占用 / the name is taken: {wanted}")

    def list_stores(self) -> list[KnowledgeBase]:
        """All knowledge bases whose time is not over."""
        with self._context.db.read() as sql:
            return [kb for kb in kbs.list_all(sql) if not is_over(kb)]

    def open(self, uid: str) -> KBService:
        """The service of a vector store.

        Raises:
            NotFound: there is none of that id, or its time is over.
        """
        with self._context.db.read() as sql:
            kb = kbs.find_uid(sql, uid)
        if kb is None or is_over(kb):
            raise NotFound(f"没有向量库 / there is no vector store vs_{uid[:40]}")
        return KBServiceFactory.get_service_of(kb)

    def modify(self, uid: str, name: str | None, attributes: Mapping[str, Any], expires: float | None) -> KnowledgeBase:
        """Change its name, some of what a client notes about it, or how long it is kept."""
        kb = self.open(uid).kb()
        with self._context.db.write() as sql:
            if name is not None and kb_label(name) != kb.name:
                if not kb_label(name) or kbs.find(sql, kb_label(name)):
                    raise AlreadyExists(f"名称已被占用或为空 / the name is taken or empty: {name}")
                kbs.rename(sql, kb.id, kb_label(name))
            if attributes:
                kbs.set_attributes(sql, kb.id, {**kb.attributes, **attributes})
            if expires is not None:
                kbs.set_expires(sql, kb.id, expires)
        return self.open(uid).kb()

    # ---- files in a vector store

    def attach(self, service: KBService, uid: str, attributes: Mapping[str, Any], options: SplitOptions) -> StoredFile:
        """Put an uploaded file into a knowledge base and queue its ingestion.

        Raises:
            NotFound: there is no such uploaded file.
            InvalidRequest: it cannot be stored there.
        """
        source, kb = self.file(uid), service.kb()
        base = PurePosixPath(source.name).name
        label = self._free_label(kb.id, base, uid)
        with self._context.files.path(source.kb_id, source.storage or "").open("rb") as stream:
            stored = self._operations.upload(service, [Upload(label, stream)], options, override=True, vectorise=False)
        if stored.failed:
            raise InvalidRequest("; ".join(stored.failed.values()))
        file = service.find_file(label)
        with self._context.db.write() as sql:
            files.set_uid(sql, file.id, uid)
            files.set_attributes(sql, file.id, attributes)
        queued = self._operations.update(service, [label], options, override_custom=True)
        if queued.failed:
            with self._context.db.write() as sql:
                files.set_state(sql, file.id, "failed", "; ".join(queued.failed.values()))
        return self._find_file(service, uid)

    def _free_label(self, kb_id: int, name: str, uid: str) -> str:
        """The name that a file gets in a knowledge base: its own, with a number when another file has it."""
        path = PurePosixPath(name)
        with self._context.db.read() as sql:
            for number in range(1, _MOST_SAME_NAMES):
                label = name if number == 1 else f"{path.stem} ({number}){path.suffix}"
                known = files.find(sql, kb_id, label)
                if known is None or known.uid == uid:
                    return label
        raise InvalidRequest(f"同名文件过多 / too many files are called {name}")

    def renew(self, service: KBService) -> None:
        """Begin the life of one that is kept for some days after its last use anew."""
        kb = service.kb()
        days = (kb.attributes.get("expires_after") or {}).get("days")
        if days and kb.expires is not None and kb.expires < time.time() + days * 86400 - _RENEW_AFTER:
            with self._context.db.write() as sql:
                kbs.set_expires(sql, kb.id, time.time() + days * 86400)

    def member(self, service: KBService, uid: str) -> StoredFile:
        """A file of a knowledge base.

        Raises:
            NotFound: it has none of that id.
        """
        return self._find_file(service, uid)

    def members(self, kb: KnowledgeBase) -> list[StoredFile]:
        """All files of a knowledge base."""
        with self._context.db.read() as sql:
            return files.list_all(sql, kb.id)

    def set_attributes(self, service: KBService, uid: str, attributes: Mapping[str, Any]) -> StoredFile:
        """Replace the attributes that searches can filter by."""
        file = self._find_file(service, uid)
        with self._context.db.write() as sql:
            files.set_attributes(sql, file.id, attributes)
        return self._find_file(service, uid)

    def detach(self, service: KBService, uid: str) -> None:
        """Take a file out of a knowledge base; an uploaded one stays in the library."""
        file = self._find_file(service, uid)
        self._operations.delete(service, [file.name], delete_content=True)

    # ---- batches

    def add_batch(self, service: KBService, uids: Sequence[str]) -> str:
        """Note which files were added together."""
        kb = service.kb()
        with self._context.db.write() as sql:
            return kbs.add_batch(sql, kb.id, uids)

    def batch(self, service: KBService, uid: str) -> tuple[list[StoredFile], float]:
        """(files that are still there, time of its making) of a batch.

        Raises:
            NotFound: there is none of that id.
        """
        kb = service.kb()
        with self._context.db.read() as sql:
            found = kbs.get_batch(sql, kb.id, uid)
            if found is None:
                raise NotFound(f"没有批次 / there is no file batch vsfb_{uid[:40]}")
            members = [files.find_uid(sql, kb.id, one) for one in found[0]]
        return [file for file in members if file is not None], found[1].timestamp()

    def cancel_batch(self, service: KBService, uid: str) -> None:
        """Stop what is not done yet."""
        members, _ = self.batch(service, uid)
        self._operations.cancel_files(service.kb(), members)


def uid_of(given: str, prefix: str) -> str:
    """The uid in an id such as `vs_…`.

    Raises:
        NotFound: it has another form.
    """
    uid = given.removeprefix(prefix)
    if uid == given or not uid.isalnum() or not uid.isascii() or len(uid) > 32:
        raise NotFound(f"没有 / there is no {given[:60]}")
    return uid
