"""Pictures: the text in them, when the extra for it is installed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from server.domain import Block, LoadedDocument
from server.ingest.loaders.base import Loader, damaged, empty, finish, needs_extra
from server.ingest.loaders.ocr import ocr_installed, read_picture

MAX_PIXELS = 50_000_000
"""Pixels of one picture: a small file can hold a picture that fills the memory."""
_MAX_FRAMES = 200
_LONGEST_SIDE = 4000


class ImageLoader(Loader):
    """A block for each frame with text; `page` is the number of the frame where there are several."""

    name = "image"
    extensions = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp"})
    binary = True

    @override
    def load(self, data: bytes, file_name: str) -> LoadedDocument:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(data)) as picture:
                _check(picture)
                if not ocr_installed():
                    raise needs_extra("图片需要文字识别（OCR）", "ocr")
                blocks = list(_blocks(picture))
        except UnidentifiedImageError as error:
            raise damaged("图片损坏，或不是图片", "broken, or no picture") from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise damaged("图片过大，疑似图片炸弹", f"too many pixels ({error})") from error
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise damaged("图片损坏", f"broken picture ({type(error).__name__})") from error
        if not blocks:
            raise empty("图片中没有识别出文字", "no text was found in the picture")
        return finish(blocks, self.name)


def _check(picture: Any) -> None:
    pixels = picture.width * picture.height
    if pixels > MAX_PIXELS:
        raise damaged(
            f"图片有 {pixels // 1_000_000} 百万像素，超过上限", f"{pixels // 1_000_000} megapixels are too many"
        )


def _blocks(picture: Any) -> Iterator[Block]:
    import numpy
    from PIL import ImageOps

    frames = min(getattr(picture, "n_frames", 1), _MAX_FRAMES) if picture.format == "TIFF" else 1
    for index in range(frames):
        picture.seek(index)
        _check(picture)
        upright = ImageOps.exif_transpose(picture).convert("RGB")
        upright.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        if text := read_picture(numpy.asarray(upright)):
            yield Block(text, page=index + 1 if frames > 1 else None)
