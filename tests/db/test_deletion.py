"""What is deleted is in no table of PostgreSQL any more, kept generations included."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import inspect, text

from server.db.session import Database
from tests import engines
from tests.conftest import fake_settings
from tests.crash_kit import running, wait_until_idle

SECRET = "quokkabrook"
WORDS = f"Ada Lovelace met Charles {SECRET.title()} in London. " * 3


def tables_with(url: str, secret: str) -> list[str]:
    """Names of the tables that hold a text, in any column and in any case."""
    db = Database(url)
    found = []
    try:
        with db.read() as sql:
            for name in inspect(sql).get_table_names():
                rows = "\n".join(sql.scalars(text(f'SELECT lower(t::text) FROM "{name}" t')))
                if any(held in rows for held in (secret, secret.encode().hex(), secret.title().encode().hex())):
                    found.append(name)
    finally:
        db.close()
    return found


def test_what_is_deleted_is_in_no_table(tmp_path: Path) -> None:
    url = engines.postgres_url()
    with running(fake_settings(tmp_path / "data", database_url=url)) as api:
        api.create("kb", vector_store_type="graph")
        api.upload("kb", {"a.txt": WORDS, "b.txt": "Nothing of it. Grace Hopper."})
        wait_until_idle(api)
        api.events("/knowledge_base/migrate", knowledge_base_name="kb", embed_model="fake8")
        wait_until_idle(api)
        assert {"chunk", "chunk_graph", "document_text"} <= set(tables_with(url, SECRET))
        api.upload("kb", {"a.txt": "now of something else"}, override="true")
        wait_until_idle(api)
        assert tables_with(url, SECRET) == []
        api.upload("kb", {"a.txt": WORDS}, override="true")
        wait_until_idle(api)
        api.delete_docs("kb", "a.txt", delete_content=True)
        wait_until_idle(api)
        assert tables_with(url, SECRET) == []
        assert api.files("kb") == ["b.txt"]
