"""Reads one parquet file in a process of its own, for `server.graph.tables_import`: a file that fools its parser, or
unpacks to more than there is memory for, ends this process and nothing else.

    python tables_reader.py FILE COLUMN …

Writes the file's columns as a line of JSON, and then each row with the columns that were asked for.
"""

from __future__ import annotations

import json
import resource
import sys

_CPU_SECONDS = 300
_MEMORY = 4 << 30
_ROWS = 64


def main(path: str, wanted: list[str]) -> None:
    """Write the rows to stdout."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        present = file.schema_arrow.names
        _write(present)
        for batch in file.iter_batches(_ROWS, columns=[name for name in wanted if name in present]):
            for row in batch.to_pylist():
                _write(row)


def _write(value: object) -> None:
    sys.stdout.buffer.write(json.dumps(value, default=str).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
