"""Pictures that users name or hand over."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from extract.datasets import ImageSet
from extract.datasets.pixels import Pixels
from extract.datasets.sample import Sample
from store import BeyondClsError

Picture = str | Path | Image.Image
USUAL = Pixels()


def open_picture(file: str | Path, pixels: Pixels = USUAL) -> Image.Image:
    """An image file, decoded as extraction decodes it, RGB. `pixels`: of the encoder that sees it.

    Raises:
        BeyondClsError: the file is missing or damaged; names it.
    """
    path = Path(file)
    if not path.is_file():
        raise BeyondClsError(f"there is no image {str(file)!r}; expected a file")
    return ImageSet(str(path), [Sample(path.name, None, path, 0, path.stat().st_size)]).with_pixels(pixels).image(0)


def open_pictures(pictures: Picture | Sequence[Picture], pixels: Pixels = USUAL) -> list[Image.Image]:
    """Pictures or files, as RGB pictures that an encoder of these `pixels` sees.

    Raises:
        BeyondClsError: there is no picture, or one cannot be read, or has values that do not fit 8 bits; names it.
    """
    several = [pictures] if isinstance(pictures, Picture) else list(pictures)
    if not several:
        raise BeyondClsError("no pictures were given; expected files or PIL images")
    return [_rgb(p, pixels) if isinstance(p, Image.Image) else open_picture(p, pixels) for p in several]


def _rgb(picture: Image.Image, pixels: Pixels) -> Image.Image:
    try:
        return pixels.rgb(picture)
    except ValueError as error:
        raise BeyondClsError(f"{picture!r} cannot be shown: {error}") from error
