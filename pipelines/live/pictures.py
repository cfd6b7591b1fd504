"""Pictures that users name or hand over."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from extract.datasets import ImageSet
from extract.datasets.sample import Sample
from store import BeyondClsError

Picture = str | Path | Image.Image


def open_picture(file: str | Path) -> Image.Image:
    """An image file, decoded as extraction decodes it, RGB.

    Raises:
        BeyondClsError: the file is missing or damaged; names it.
    """
    path = Path(file)
    if not path.is_file():
        raise BeyondClsError(f"there is no image {str(file)!r}; expected a file")
    return ImageSet(str(path), [Sample(path.name, None, path, 0, path.stat().st_size)]).image(0)


def opened(pictures: Picture | Sequence[Picture]) -> list[Image.Image]:
    """Pictures or files, as RGB pictures.

    Raises:
        BeyondClsError: there is no picture, or one cannot be read; names it.
    """
    several = [pictures] if isinstance(pictures, Picture) else list(pictures)
    if not several:
        raise BeyondClsError("no pictures were given; expected files or PIL images")
    return [p.convert("RGB") if isinstance(p, Image.Image) else open_picture(p) for p in several]
