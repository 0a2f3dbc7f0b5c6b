"""NUL and half characters, which no database stores, in every field of every route: no request is a fault of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs import Settings
from server.app import create_app
from tests.conftest import Api, app_of, fake_settings

ODD = r'"a\u0000b\ud800"'
KNOWN = {"knowledge_base_name": "kb", "kb_name": "kb", "vector_store_type": "faiss", "file_name": "a.txt"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    settings = fake_settings(tmp_path_factory.mktemp("odd") / "data", extractive_fallback=True)
    with TestClient(app_of(settings), raise_server_exceptions=False) as client:
        api = Api(client)
        api.create("kb")
        api.upload("kb", {"a.txt": "some text"})
        yield api


def example(schema: dict[str, Any], parts: dict[str, Any], name: str, depth: int = 0) -> str:
    """JSON of a value that fits, odd wherever it is a string."""
    if "$ref" in schema:
        return example(parts[schema["$ref"].rpartition("/")[2]], parts, name, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return example(schema[key][0], parts, name, depth + 1)
    if name in KNOWN:
        return json.dumps(KNOWN[name])
    if "enum" in schema or "const" in schema:
        return json.dumps(schema.get("const", schema.get("enum", [None])[0]))
    kind = schema.get("type")
    if kind == "object" and depth < 6:
        fields = schema.get("properties") or {}
        inner = [f"{json.dumps(key)}: {example(value, parts, key, depth + 1)}" for key, value in fields.items()]
        return "{" + ", ".join(inner or [f"{ODD}: {ODD}"]) + "}"
    if kind == "array":
        return "[" + example(schema.get("items", {"type": "string"}), parts, name, depth + 1) + "]"
    return {"integer": "1", "number": "1", "boolean": "false"}.get(str(kind), ODD)


def operations() -> list[tuple[str, str]]:
    paths = create_app(Settings()).openapi()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


@pytest.mark.parametrize(("method", "path"), operations(), ids=lambda part: str(part))
def test_odd_text_is_no_fault_of_ours(served: Api, method: str, path: str) -> None:
    spec = served.http.get("/openapi.json").json()
    operation, parts = spec["paths"][path][method], spec["components"]["schemas"]
    params = {one["name"]: KNOWN.get(one["name"], "a\x00b") for one in operation.get("parameters", ())}
    integers = {one["name"] for one in operation.get("parameters", ()) if "integer" in json.dumps(one["schema"])}
    values = {name: "1" if name in integers else value for name, value in params.items()}
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value.replace("\x00", "%00"))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    sent = example(body["schema"], parts, "").encode() if body else None
    response = served.http.request(
        method.upper(), path, params=values, content=sent, headers={"content-type": "application/json"}
    )
    assert response.status_code < 500, response.text
    assert "internal error" not in response.text
