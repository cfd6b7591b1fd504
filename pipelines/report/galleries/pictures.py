"""Pictures of a gallery: which images, what is laid over them (label maps, masks, boxes), and how they are encoded.

A colour of a class is the one that is furthest, in OKLab, from those before it, from white and from VOID, to the eyes that tell
it from them least: normal ones, and those that lack one kind of cone (Machado et al. 2009). So few classes are as different as
can be, and the more there are, the nearer they get.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, UInt8
from PIL import Image, ImageDraw

from pipelines.live.overlay import cut_out
from pipelines.report.collect import Examples
from pipelines.report.content import Gallery, Picture
from pipelines.report.tables import file_names

SIDE = 256  # pixels of the longer side; shown at half that size on the page, but in a large gallery
QUALITY = 70  # of WebP: a fifth of a PNG's bytes, and no visible difference
OPACITY = 0.5  # of masks
GROUND = 96  # grey of an image that is not here
VOID = (34, 34, 34)  # pixels without a class
COLOURS = (
    *("#0072b2", "#e69f00", "#40c0ff", "#806000", "#204080", "#a0ff80", "#a060ff", "#ff6080"),
    *("#ffc0c0", "#40a0c0", "#8000e0", "#604000", "#a08020", "#a04060", "#c0e000", "#8080e0"),
    *("#00e0ff", "#c020a0", "#802040", "#c0c080", "#c06060", "#8000a0", "#a06080", "#6020c0"),
)
BoxOf = tuple[float, float, float, float]  # x0, y0, x1, y1
Pixels = UInt8[np.ndarray, "H W 3"]


@dataclass(frozen=True)
class Outline:
    """A box in pixels of a picture, and how it is drawn: outlined in black, so that it shows on any background."""

    box: BoxOf
    colour: str = "#ffffff"
    width: int = 2
    dashed: bool = False


def choose_rows(ids: Sequence[str], examples: Examples, labels: Sequence[int | None] | None = None) -> list[int]:
    """Rows of the images to show of these: those asked for, if any is among them; else drawn by the seed (in the order of the
    set); else in turn over the classes, or without labels spread evenly."""
    if wanted := [ids.index(wanted) for wanted in dict.fromkeys(examples.ids) if wanted in ids]:
        return wanted
    n = min(examples.n, len(ids))
    if examples.seed is not None:
        return sorted(np.random.default_rng(examples.seed).choice(len(ids), n, replace=False).tolist())
    return [row * len(ids) // n for row in range(n)] if labels is None else _rows_by_turns(labels, n)


def _rows_by_turns(labels: Sequence[int | None], n: int) -> list[int]:
    """Rows of the first image of each class in the order of labels, then of the second of each, up to `n` rows."""
    seen: dict[int | None, int] = {}
    ranked = []
    for row, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranked.append((seen[label], -1 if label is None else label, row))
    return [row for _, _, row in sorted(ranked)[:n]]


def fit_size(box: Sequence[float]) -> tuple[int, int]:
    """Width and height at which a part of an image is drawn."""
    across, down = box[2] - box[0], box[3] - box[1]
    scale = SIDE / max(across, down)
    return max(1, round(across * scale)), max(1, round(down * scale))


def crop_or_grey(image: Image.Image | None, part: BoxOf, flip: bool = False) -> Pixels:
    """A part of an image, maybe mirrored; grey, in the same proportions, without the image."""
    width, height = fit_size(part)
    if image is None:
        return np.full((height, width, 3), GROUND, np.uint8)
    return cut_out(image, part, (width, height))[:, :: -1 if flip else 1]


def move_box(box: Sequence[float], part: Sequence[float], picture: Pixels) -> BoxOf:
    """A box of an image in the pixels of a picture that shows part of that image."""
    (left, top, right, bottom), (height, width, _) = part, picture.shape
    across, down = width / (right - left), height / (bottom - top)
    x0, y0, x1, y1 = box[:4]
    return (x0 - left) * across, (y0 - top) * down, (x1 - left) * across, (y1 - top) * down


def tint(picture: Pixels, mask: Bool[np.ndarray, "h w"], colour: str) -> Pixels:
    """With a mask over it, which is stretched to the picture."""
    stretched = np.asarray(Image.fromarray(mask).resize(picture.shape[1::-1], Image.Resampling.NEAREST))
    mixed = np.round((1 - OPACITY) * picture + OPACITY * np.array(rgb(colour))).astype(np.uint8)
    return np.where(stretched[..., None], mixed, picture)


def draw_outlines(picture: Pixels, outlines: Iterable[Outline]) -> Pixels:
    """With boxes over it, the last on top; those beyond its borders are drawn along them."""
    height, width, _ = picture.shape
    down, across = np.indices((height, width))
    result = picture.copy()
    for outline in outlines:
        x0, y0, x1, y1 = (round(min(max(at, 1), side - 2)) for at, side in zip(outline.box, (width, height) * 2, strict=True))
        drawn = (across + down) // (5 * outline.width // 2) % 2 == 0 if outline.dashed else True
        for colour, around in (("#000000", outline.width // 2), (outline.colour, 0)):
            border = Image.new("1", (width, height))
            corners = (x0 - around, y0 - around, max(x0, x1) + around, max(y0, y1) + around)
            ImageDraw.Draw(border).rectangle(corners, outline=1, width=outline.width + 2 * around)
            result[np.asarray(border) & drawn] = rgb(colour)
    return result


def colour_map(label_map: Int[np.ndarray, "H W"], colours: Mapping[int, str]) -> Pixels:
    """A label map as a picture; negative labels are VOID."""
    labels, places = np.unique(label_map, return_inverse=True)
    table = np.array([VOID if label < 0 else rgb(colours[label]) for label in labels.tolist()], np.uint8)
    return table[places.reshape(label_map.shape)]


def colours_of(labels: Iterable[int]) -> dict[int, str]:
    """A colour for each of these classes, as #rrggbb: that at its label's place, or the next that none of them has.

    So the colour of a class is always the same in a data set of no more classes than there are colours; where more are shown
    together, colours repeat.
    """
    by_label: dict[int, str] = {}
    for n, label in enumerate(sorted(set(labels))):
        taken = set(list(by_label.values())[n - n % len(COLOURS) :])  # in this round through the colours
        places = (COLOURS[(label + i) % len(COLOURS)] for i in range(len(COLOURS)))
        by_label[label] = next(colour for colour in places if colour not in taken)
    return by_label


def rgb(colour: str) -> tuple[int, int, int]:
    """#rrggbb as numbers, 0…255."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def uri(picture: Picture, gallery: Gallery) -> str:
    """A picture as the page has it, inline: lossless where its colours are few, which that makes smaller."""
    image = Image.fromarray(picture.pixels)
    is_flat = image.getcolors() is not None
    if not gallery.large:
        image = image.reduce(2)
    target = io.BytesIO()
    image.save(target, format="WEBP", quality=QUALITY, method=6, use_sharp_yuv=True, lossless=is_flat)
    return "data:image/webp;base64," + base64.b64encode(target.getvalue()).decode("ascii")


def files_of(gallery: Gallery) -> list[list[str]]:
    """Names of the files of its pictures, without .png: GALLERY-ROW-COLUMN, rows from 1 on."""
    columns = [f"{group} {column}" for group, column in zip(gallery.group_of_columns, gallery.columns, strict=True)]
    return [list(file_names(f"{gallery.name}-{row}", columns).values()) for row in range(1, len(gallery.rows) + 1)]
