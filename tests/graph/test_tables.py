"""Graphs as GraphRAG's tables: out, in, and what is refused."""

from __future__ import annotations

import builtins
import io
import json
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from server.db import graphs
from server.db.graphs import Extracted
from server.db.vectors import text_hash
from server.domain import Extraction, Job, KnowledgeBase, Mention, StoredFile
from server.errors import InvalidRequest, MissingDependency
from server.graph import tables_import
from server.graph.graph import Graph
from server.graph.tables import COLUMNS, zipped_tables
from server.graph.tables_import import read_tables
from server.knowledge_base.backends.graph import GraphKBService
from server.knowledge_base.factory import KBServiceFactory
from server.knowledge_base.graph_builds import queue_build
from server.knowledge_base.operations import IngestHandler
from tests.conftest import Api, ServerProcess
from tests.graph.test_service import ADA, BABBAGE, ENGINE, SANGUO, built

STANDARD = {  # GraphRAG 3.3, read from its code
    "documents": "id human_readable_id title text text_unit_ids creation_date raw_data",
    "text_units": "id human_readable_id text n_tokens document_id entity_ids relationship_ids covariate_ids",
    "entities": "id human_readable_id title type description text_unit_ids frequency degree x y",
    "relationships": "id human_readable_id source target description weight combined_degree text_unit_ids",
    "communities": "id human_readable_id community level parent children title entity_ids relationship_ids "
    "text_unit_ids period size",
    "community_reports": "id human_readable_id community level parent children title summary full_content rank "
    "rating_explanation findings full_content_json period size",
    "covariates": "id human_readable_id covariate_type type description subject_id object_id status start_date "
    "end_date source_text text_unit_id",
}
FIRST = "Ahab commands the Pequod, a whaler out of Nantucket."
SECOND = "The Pequod sinks; only Ishmael is left."
THIRD = "亚哈船长追捕白鲸莫比·迪克。"


def service(name: str = "g") -> GraphKBService:
    found = KBServiceFactory.get_service_by_name(name)
    assert isinstance(found, GraphKBService)
    return found


def exported(api: Api, name: str = "g") -> bytes:
    answer = api.http.get("/graph/export", params={"knowledge_base_name": name, "format": "parquet"})
    assert answer.headers["content-type"] == "application/zip"
    return bytes(answer.content)


def tables(data: bytes) -> dict[str, list[dict[str, Any]]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {
            name.removesuffix(".parquet"): pq.read_table(io.BytesIO(archive.read(name))).to_pylist()
            for name in archive.namelist()
        }


def brought_in(api: Api, data: bytes, name: str = "g") -> dict[str, Any]:
    sent = api.http.post("/graph/import", files={"file": ("g.zip", data)}, data={"knowledge_base_name": name}).json()
    assert sent["code"] == 200, sent
    deadline = time.monotonic() + 300
    while {file["state"] for file in api.details(name).values()} - {"ready"}:
        assert time.monotonic() < deadline, api.details(name)
        time.sleep(0.05)
    built(api, name)
    return dict(sent["data"])


def parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"output/{name}.parquet", data)
    return out.getvalue()


def by_hand(**changed: Any) -> dict[str, list[dict[str, Any]]]:
    """An index as GraphRAG writes it, by its documentation: lists in three forms, no columns that may be missing."""
    return {
        "documents": [
            {"id": "d1", "title": "moby.txt", "text": f"{FIRST}\n{SECOND}"},
            {"id": "d2", "title": "../白鲸.pdf", "text": THIRD},
        ],
        "text_units": [
            {"id": "u1", "text": FIRST, "document_id": "d1"},
            {"id": "u2", "text": SECOND, "document_id": "d1"},
            {"id": "u3", "text": THIRD, "document_id": "d2"},
        ],
        "entities": [
            {"title": "AHAB", "type": "PERSON", "description": "A captain who lost a leg", "text_unit_ids": '["u1"]'},
            {"title": "PEQUOD", "type": "SHIP", "description": "", "text_unit_ids": '["u1", "u2"]'},
            {"title": "亚哈", "type": "人物", "description": "船长", "text_unit_ids": '["u3"]'},
            {"title": "莫比·迪克", "type": "", "description": "白鲸", "text_unit_ids": '["u3", "gone"]'},
            {"title": "HERMAN MELVILLE", "type": "PERSON", "description": "The author", "text_unit_ids": "[]"},
        ],
        "relationships": [
            {"source": "AHAB", "target": "PEQUOD", "description": "commands", "weight": 6.0, "text_unit_ids": ["u1"]},
            {"source": "亚哈", "target": "莫比·迪克", "description": "追捕", "weight": 2.0, "text_unit_ids": ["u3"]},
        ],
        **changed,
    }


def as_zip(rows: Mapping[str, list[dict[str, Any]]]) -> bytes:
    return zipped(**{name: parquet(found) for name, found in rows.items()})


@pytest.fixture
def graph_api(api: Api) -> Api:
    api.create("g", vector_store_type="graph")
    api.upload("g", {"ada.txt": ADA, "babbage.txt": BABBAGE, "engine.txt": ENGINE, "三国.txt": SANGUO})
    built(api)
    return api


def test_an_export_is_what_graphrag_writes(graph_api: Api) -> None:
    graph_api.post("/graph/entity/create", knowledge_base_name="g", name="Mary Somerville", description="taught Ada")
    built(graph_api)
    data = exported(graph_api)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name, columns in STANDARD.items():
            assert pq.read_schema(io.BytesIO(archive.read(f"{name}.parquet"))).names == columns.split()
    assert data == exported(graph_api)  # the same again, to the byte
    found = tables(data)
    assert {row["title"]: row["text"] for row in found["documents"]} == {
        "ada.txt": ADA, "babbage.txt": BABBAGE, "engine.txt": ENGINE, "三国.txt": SANGUO,
    }  # fmt: skip
    ids = {name: {row["id"] for row in rows} for name, rows in found.items()}
    for name, rows in found.items():
        assert len(ids[name]) == len(rows)
        assert [row["human_readable_id"] for row in rows] == list(range(len(rows)))
        for row in rows:
            for column, of in (
                ("text_unit_ids", "text_units"),
                ("entity_ids", "entities"),
                ("relationship_ids", "relationships"),
            ):
                assert set(row.get(column) or ()) <= ids[of], (name, column)
    entities = {row["title"]: row for row in found["entities"]}
    assert entities["Mary Somerville"]["text_unit_ids"] == []
    assert entities["Mary Somerville"]["description"] == "taught Ada"
    assert entities["Charles Babbage"]["frequency"] == 2
    assert len({(row["x"], row["y"]) for row in found["entities"]}) == len(entities)
    assert all(row["source"] in entities and row["target"] in entities for row in found["relationships"])
    inside = [title for row in found["communities"] if row["level"] == 0 for title in row["entity_ids"]]
    assert sorted(inside) == sorted(ids["entities"])
    numbers = {row["community"]: row for row in found["communities"]}
    assert all(
        row["parent"] == -1 or row["community"] in numbers[row["parent"]]["children"] for row in numbers.values()
    )
    assert found["community_reports"]
    for row in found["community_reports"]:
        assert row["size"] == numbers[row["community"]]["size"]
        assert row["title"] in row["full_content"]
        assert json.loads(row["full_content_json"])["findings"] == row["findings"]
    assert found["covariates"] == []


def _shape(graph: Graph, texts: Mapping[int, str]) -> tuple[Any, Any]:
    """What a graph says, by names and the texts of its chunks."""
    nodes = {
        (graph.shown(key).name, graph.shown(key).type): sorted(texts.get(chunk, "") for chunk in node.chunks)
        for key, node in graph.nodes.items()
    }
    edges = {
        tuple(graph.shown(key).name for key in pair): (
            round(edge.weight, 6), sorted(texts.get(chunk, "") for chunk in edge.chunks)
        )
        for pair, edge in graph.edges.items()
    }  # fmt: skip
    return nodes, edges


def shape(name: str) -> tuple[Any, Any]:
    texts = {int(hit.id): hit.text for hit in service(name).list_docs()}
    with service(name).graph() as graph:
        return _shape(graph, texts)


def test_an_export_makes_the_same_graph_elsewhere(graph_api: Api) -> None:
    graph_api.upload("g", {"more.txt": "Ada Lovelace wrote the first letter to Charles Babbage."})
    built(graph_api)
    with service().graph() as graph:
        assert any(len(edge.chunks) > 1 for edge in graph.edges.values())
    graph_api.post("/graph/entity/create", knowledge_base_name="g", name="Mary Somerville", description="taught Ada")
    graph_api.post("/graph/relation/create", knowledge_base_name="g", source="Mary Somerville", target="Ada Lovelace")
    graph_api.post("/graph/merge", knowledge_base_name="g", names=["关羽"], into="张飞")
    built(graph_api)
    data = exported(graph_api)
    graph_api.create("h", vector_store_type="graph")
    counts = brought_in(graph_api, data, "h")
    assert counts == {"files": 5, "entities": 1, "relations": 1, "dropped": 0, "failed_files": {}}
    assert shape("h") == shape("g")
    assert graph_api.texts("h", "Ada Lovelace first program") == graph_api.texts("g", "Ada Lovelace first program")
    again = brought_in(graph_api, data, "h")
    assert (again["files"], again["entities"], len(again["failed_files"])) == (0, 0, 5)
    assert shape("h") == shape("g")


def test_what_is_brought_replaces_what_a_build_has_read_before(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.create("g", vector_store_type="graph")
    tell = IngestHandler._tell

    def late(self: IngestHandler, job: Job, kb: KnowledgeBase, file: StoredFile) -> None:
        with self._context.db.write(kb.id) as sql:
            queue_build(sql, self._context, kb)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with service().graph() as graph:
                if any(chunk >= 0 for chunk in graph.extractions):
                    break
            time.sleep(0.02)
        tell(self, job, kb, file)

    monkeypatch.setattr(IngestHandler, "_tell", late)
    brought_in(api, as_zip(by_hand()))
    with service().graph() as graph:
        assert "ishmael" not in graph.nodes
        assert {"ahab", "pequod", "亚哈"} <= graph.nodes.keys()


def test_a_graphrag_index_is_brought_in_searched_cited_and_deleted(api: Api, settings_dir: Path) -> None:
    api.create("g", vector_store_type="graph")
    counts = brought_in(api, as_zip(by_hand()))
    assert counts == {"files": 2, "entities": 1, "relations": 0, "dropped": 0, "failed_files": {}}
    names = {name for name in api.files("g") if name != "moby.txt"}
    assert "moby.txt" in api.files("g")
    (chinese,) = names
    assert "/" not in chinese
    assert built(api)["calls"] == 0
    with service().graph() as graph:
        assert {graph.shown(key).name for key in graph.nodes} == {
            "AHAB",
            "PEQUOD",
            "亚哈",
            "莫比·迪克",
            "HERMAN MELVILLE",
        }
        assert graph.shown("ahab").type == "person"
        assert graph.descriptions("ahab") == ["A captain who lost a leg"]
        assert graph.edges["ahab", "pequod"].weight == 6.0

    hits = api.post("/retrieval/search", knowledge_base_names=["g"], query="What does Ahab command?", mode="local")[
        "hits"
    ]
    assert (hits[0]["file_name"], hits[0]["text"]) == ("moby.txt", FIRST)
    assert hits[0]["metadata"]["text_unit_id"] == "u1"
    asked = api.events(
        "/chat/knowledge_base_chat", query="亚哈追捕谁？", knowledge_base_name="g", mode="local", details=True
    )
    assert "莫比·迪克" in json.dumps(asked, ensure_ascii=False)
    citation = next(event for event in asked if "citations" in event)["citations"][0]
    assert citation["file_name"] == chinese
    assert citation["verified"]

    api.delete_docs("g", "moby.txt", delete_content=True)
    built(api)
    with service().graph() as graph:
        assert {graph.shown(key).name for key in graph.nodes} == {"亚哈", "莫比·迪克", "HERMAN MELVILLE"}
    assert api.texts("g", "Ahab Pequod whaler", search_type="keyword") == []
    held = [path for path in settings_dir.rglob("*") if path.is_file() and b"lost a leg" in path.read_bytes()]
    assert held == []


def test_what_was_brought_in_is_never_read_instead(api: Api) -> None:
    api.create("g", vector_store_type="graph")
    brought_in(api, as_zip(by_hand()))
    before = shape("g")
    api.post("/graph/build", knowledge_base_name="g", again=True)
    built(api)
    assert shape("g") == before
    with service().context.db.write() as sql:  # a reader that was under way when the tables came
        hit = next(one for one in service().list_docs() if one.text == FIRST)
        late = Extracted(int(hit.id), text_hash(FIRST), Extraction((Mention("Nantucket"),)))
        graphs.add(sql, service().generation().id, "nlp-2", [late])
    assert shape("g") == before
    assert all(event["code"] == 200 for event in api.recreate("g"))
    built(api)
    assert shape("g") == before


def test_older_tables_and_those_without_text_units(api: Api) -> None:
    old = by_hand()
    units = [{"id": row["id"], "text": row["text"], "document_ids": [row["document_id"]]} for row in old["text_units"]]
    named = [{"name": row["title"], "type": None, "text_unit_ids": ["u1"]} for row in old["entities"][:1]]
    found = read_tables(zipped(create_final_text_units=parquet(units), create_final_entities=parquet(named)))
    assert [(file.name, len(file.chunks)) for file in found.files] == [("d1.txt", 2), ("d2.txt", 1)]
    assert found.files[0].said[0] == Extraction((Mention("AHAB"),))
    api.create("g", vector_store_type="graph")
    rows = by_hand()
    counts = brought_in(api, as_zip({name: rows[name] for name in ("entities", "relationships")}))
    assert counts == {"files": 0, "entities": 5, "relations": 2, "dropped": 0, "failed_files": {}}
    with service().graph() as graph:
        assert graph.edges["ahab", "pequod"].weight == 6.0


def test_names_are_labels(tmp_path: Path) -> None:
    rows = by_hand()
    rows["documents"] = [{"id": "d1", "title": "a\0/../../etc/passwd"}, {"id": "d2", "title": "x" * 2000}]
    rows["entities"] += [{"title": name, "type": "", "text_unit_ids": "[]"} for name in ("", "...", "y" * 500)]
    rows["relationships"].append({"source": "AHAB", "target": "ahab", "text_unit_ids": []})
    found = read_tables(as_zip(rows))
    assert all(len(file.name) < 40 and "/" not in file.name for file in found.files)
    assert found.dropped == 4


def refused(data: bytes | Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_tables(data)
    return caught.value.message


def test_broken_tables_are_refused_with_the_reason(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parquet(by_hand()["entities"])
    assert "entities.parquet" in refused(zipped(documents=parquet([{"id": "1"}])))
    assert "entities.parquet" in refused(zipped(entities=b"PAR1 no parquet PAR1"))
    assert "entities.parquet" in refused(zipped(entities=whole[: len(whole) // 2]))
    assert "title" in refused(zipped(entities=parquet([{"no": 1}])))
    assert "text_units.parquet" in refused(zipped(entities=whole, text_units=parquet([{"id": "1"}])))
    assert "text_unit_ids" in refused(zipped(entities=parquet([{"title": "A", "text_unit_ids": "u1, u2"}])))
    assert "zip" in refused(b"PK\x03\x04 broken")
    assert "entities.parquet" in refused(tmp_path)
    api.create("g", vector_store_type="graph")
    sent = api.http.post(
        "/graph/import", files={"file": ("g.zip", zipped(entities=b"x"))}, data={"knowledge_base_name": "g"}
    ).json()
    assert sent["code"] == 422
    assert api.files("g") == []
    monkeypatch.setattr(tables_import, "_MOST_ROWS", 3)
    assert "3" in refused(zipped(entities=whole))
    monkeypatch.setattr(tables_import, "_MOST_ROWS", 100)
    monkeypatch.setattr(tables_import, "_MOST_LINKS", 3)
    assert "3" in refused(as_zip(by_hand()))


def test_a_file_that_unpacks_to_more_than_there_is_memory_for(tmp_path: Path) -> None:
    out = io.BytesIO()
    titles = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000), pa.array(["x" * 1_000_000]))
    pq.write_table(pa.table({"title": titles}), out)
    assert len(out.getvalue()) < 2_000_000
    assert "entities" in refused(zipped(entities=out.getvalue()))


def test_without_pyarrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(tables_import, "find_spec", lambda _: None)
    for work in (lambda: zipped_tables({name: [] for name in COLUMNS}), lambda: read_tables(b"")):
        with pytest.raises(MissingDependency, match=r"zhiku\[tables\]"):
            work()


def test_tables_on_the_command_line(process: ServerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    for name, rows in by_hand().items():
        (folder / f"{name}.parquet").write_bytes(parquet(rows))
    assert process.zhiku("kb", "create", "g", "--vs-type", "graph").returncode == 0
    done = process.zhiku("graph", "import", "g", str(folder))
    assert done.returncode == 0, done.stderr
    assert process.zhiku("graph", "export", "g", str(tmp_path / "out")).returncode == 0
    assert {path.stem for path in (tmp_path / "out").iterdir()} == set(STANDARD)
    titles = pq.read_table(tmp_path / "out" / "entities.parquet").column("title").to_pylist()
    assert sorted(titles) == sorted(row["title"] for row in by_hand()["entities"])
    assert process.zhiku("graph", "import", "g", str(folder)).returncode == 1  # the files are there
