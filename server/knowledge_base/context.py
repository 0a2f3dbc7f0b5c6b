"""What knowledge base services are made of, put together once at the start."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from configs import Settings
from server.db.session import Database
from server.domain import Generation
from server.filestore import FileStore
from server.graph.index import GraphIndex
from server.ingest.pipeline import Pipeline, SplitOptions
from server.knowledge_base.cache import CachePool
from server.knowledge_base.store_clients import StoreClients
from server.models.closeness import Closeness
from server.models.embeddings import EmbeddingModels
from server.models.transform import EmbeddingTransform
from server.retrieval.keyword import KeywordIndex

if TYPE_CHECKING:
    from server.knowledge_base.backends.faiss_index import FaissIndex


@dataclass(frozen=True, slots=True)
class Space:
    """Where the vectors of one generation live.

    `collection` is a name for stores that need one: the server's own, ASCII, and unique among all installations that
    share a store, because the knowledge base's uid is part of it.
    """

    kb_id: int
    generation_id: int
    kb_uid: str

    @classmethod
    def of(cls, generation: Generation) -> Space:
        """The space that a generation is searched in."""
        return cls(generation.kb_id, generation.id, generation.kb_uid)

    @property
    def collection(self) -> str:
        """Name of the store's collection or file."""
        return f"zhiku_{self.kb_uid}_g{self.generation_id}"


class Transforms:
    """Fitted embedding transforms that were used lately, by (generation, number of the fit)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: dict[tuple[int, int], EmbeddingTransform] = {}

    def get(self, key: tuple[int, int], load: Callable[[], EmbeddingTransform]) -> EmbeddingTransform:
        """The transform of that key; loading it twice at the same time does no harm."""
        if key not in self._known:
            if len(self._known) >= self._size:
                self._known.clear()
            self._known[key] = load()
        return self._known.get(key) or load()


class Locks:
    """One lock by key, made when it is first asked for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: defaultdict[object, threading.Lock] = defaultdict(threading.Lock)

    def of(self, key: object) -> threading.Lock:
        """The lock of that key."""
        with self._guard:
            return self._locks[key]


@dataclass(frozen=True)
class KBContext:
    """The parts that every service shares."""

    settings: Settings
    db: Database
    files: FileStore
    embeddings: EmbeddingModels
    pipeline: Pipeline
    index_dir: Path
    keyword_pool: CachePool[int, KeywordIndex]
    vector_pool: CachePool[Space, FaissIndex]
    graph_pool: CachePool[int, GraphIndex]
    default_transform: Callable[[str], EmbeddingTransform]
    closeness: Closeness
    stores_dir: Path
    transforms: Transforms = field(default_factory=lambda: Transforms(64))
    locks: Locks = field(default_factory=Locks)
    store_clients: StoreClients = field(default_factory=StoreClients)

    @classmethod
    def build(
        cls,
        settings: Settings,
        db: Database,
        embeddings: EmbeddingModels,
        default_transform: Callable[[str], EmbeddingTransform],
    ) -> KBContext:
        """Wire the parts; nothing is opened yet but the database."""
        root = settings.data_dir.resolve()
        name = settings.default_embed_model
        store = FileStore(root / "files", settings.max_upload_mb << 20)
        return cls(
            settings=settings,
            db=db,
            files=store,
            embeddings=embeddings,
            pipeline=Pipeline(db, store, embeddings),
            index_dir=(settings.index_dir or root / "index").resolve(),
            keyword_pool=CachePool(settings.cached_vs_num * 4),
            vector_pool=CachePool(settings.cached_vs_num, lambda index: index.save_if_large()),
            graph_pool=CachePool(settings.cached_vs_num),
            default_transform=default_transform,
            closeness=Closeness(lambda: embeddings.get(name), default_transform(name)),
            stores_dir=root / "stores",
        )

    def directory(self, kb_id: int, generation_id: int | None = None) -> Path:
        """Where the local indexes of a knowledge base, or of one generation of it, lie."""
        path = self.index_dir / f"kb{kb_id}"
        return path if generation_id is None else path / f"g{generation_id}"

    @property
    def split_options(self) -> SplitOptions:
        """How files are cut where nothing else is said."""
        settings = self.settings
        return SplitOptions(
            settings.chunk_size, settings.chunk_overlap, settings.zh_title_enhance, settings.text_splitter
        )

    def forget(self, kb_id: int, generation_id: int | None = None) -> None:
        """Close and delete the local indexes of a knowledge base, or of one generation of it."""
        for space in self.vector_pool.keys():  # noqa: SIM118
            if space.kb_id == kb_id and generation_id in (None, space.generation_id):
                self.vector_pool.pop(space)
        if generation_id is not None:
            self.keyword_pool.pop(generation_id)
            self.graph_pool.pop(generation_id)
        shutil.rmtree(self.directory(kb_id, generation_id), ignore_errors=True)

    def close(self) -> None:
        """Save the indexes and close what is open."""
        self.pipeline.sandbox.close()
        self.vector_pool.clear()
        self.keyword_pool.clear()
        self.graph_pool.clear()
        self.store_clients.close()
        self.embeddings.close()
        self.db.close()
