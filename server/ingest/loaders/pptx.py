"""PowerPoint presentations (pptx): the texts, tables and notes of each slide."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.archive import UNREADABLE, open_archive
from server.ingest.loaders.base import Loader, damaged, finish
from server.ingest.loaders.encoding import clean
from server.ingest.loaders.headings import HEADING
from server.ingest.loaders.rows import table_blocks

_BROKEN = (*UNREADABLE, AttributeError, TypeError, IndexError, SyntaxError)
# A diagram's texts lie in a part of their own, which the slide's frame points to.
_DIAGRAM_DATA = "/diagramData"
_TEXT = "{http://schemas.openxmlformats.org/drawingml/2006/main}t"
_PARAGRAPH = "{http://schemas.openxmlformats.org/drawingml/2006/main}p"

_MACROS = tuple(f"application/vnd.ms-powerpoint.{kind}.macroEnabled.main+xml" for kind in ("slideshow", "template"))


class PptxLoader(Loader):
    """Shapes from the top down, each a block; `page` is the number of the slide, its title the heading."""

    name = "pptx"
    extensions = frozenset({".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        from pptx.exc import PythonPptxError

        open_archive(data).close()
        try:
            return finish(list(_blocks(data)), self.name)
        except (*_BROKEN, PythonPptxError) as error:
            reason = f"broken, or no presentation ({type(error).__name__})"
            raise damaged("文件损坏，或不是 PowerPoint 演示文稿", reason) from error


def _blocks(data: bytes) -> Iterator[Block]:
    from pptx.opc.constants import CONTENT_TYPE
    from pptx.package import Package

    part = Package.open(io.BytesIO(data)).main_document_part
    if not hasattr(part, "presentation"):  # shows and templates: the same content under other names
        from pptx.opc.package import PartFactory
        from pptx.parts.presentation import PresentationPart

        for kind in (CONTENT_TYPE.PML_SLIDESHOW_MAIN, CONTENT_TYPE.PML_TEMPLATE_MAIN, *_MACROS):
            PartFactory.part_type_for[kind] = PresentationPart
        part = Package.open(io.BytesIO(data)).main_document_part
    for number, slide in enumerate(part.presentation.slides, start=1):
        yield from _slide(slide, number)


def _slide(slide: Any, number: int) -> Iterator[Block]:
    title = slide.shapes.title
    heading = clean(" ".join(title.text_frame.text.split())) if title is not None else ""
    path = (heading,) if heading else ()
    if heading:
        yield Block(heading, number, path, metadata={"kind": HEADING})
    for shape in _in_order(slide.shapes):
        if title is not None and shape.shape_id == title.shape_id:
            continue
        yield from _shape(shape, number, path)
    for text in _diagrams(slide):
        yield Block(text, number, path)
    if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame) is not None:
        yield Block(clean(frame.text).strip(), number, path, metadata={"kind": "note"})


def _in_order(shapes: Any) -> list[Any]:
    """From the top down, from left to right where they stand side by side; groups are opened."""
    flat: list[Any] = []
    stack = list(reversed(list(shapes)))
    while stack:
        shape = stack.pop()
        if hasattr(shape, "shapes"):
            stack.extend(reversed(list(shape.shapes)))
        else:
            flat.append(shape)
    # Positions within a group are the group's own; where any is missing, the order of drawing is all there is.
    grouped = len(flat) != len(list(shapes))
    if grouped or any(shape.top is None or shape.left is None for shape in flat):
        return flat
    return sorted(flat, key=lambda shape: (shape.top // 100_000, shape.left))


def _shape(shape: Any, number: int, path: tuple[str, ...]) -> Iterator[Block]:
    if getattr(shape, "has_table", False):
        rows = [[clean(_cell_text(cell)) for cell in row.cells] for row in shape.table.rows]
        yield from table_blocks(rows, path, number)
    elif getattr(shape, "has_chart", False):
        yield from table_blocks(list(_chart(shape.chart)), path, number)
    elif shape.has_text_frame:
        yield Block(clean(shape.text_frame.text.replace("\v", "\n")).strip(), number, path)


def _cell_text(cell: Any) -> str:
    return "" if cell.is_spanned else str(cell.text_frame.text)


def _chart(chart: Any) -> Iterator[list[str]]:
    if chart.has_title and chart.chart_title.has_text_frame:
        yield [clean(chart.chart_title.text_frame.text)]
    for plot in chart.plots:
        series = list(plot.series)
        yield ["", *(str(one.name) for one in series)]
        for index, category in enumerate(plot.categories):
            values = (one.values[index] if index < len(one.values) else None for one in series)
            yield [str(category), *("" if value is None else f"{value:g}" for value in values)]


def _diagrams(slide: Any) -> Iterator[str]:
    from lxml import etree

    for relation in slide.part.rels.values():
        if relation.is_external or not relation.reltype.endswith(_DIAGRAM_DATA):
            continue
        root = etree.fromstring(relation.target_part.blob, etree.XMLParser(resolve_entities=False, no_network=True))
        lines = ("".join(run.text or "" for run in paragraph.iter(_TEXT)) for paragraph in root.iter(_PARAGRAPH))
        yield clean("\n".join(filter(None, lines)))
