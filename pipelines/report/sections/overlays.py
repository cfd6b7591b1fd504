"""Where they look: attention of [cls] and weights of heads drawn over test images (Fig. 2, 8, 9)."""

import difflib
from typing import TYPE_CHECKING

from pipelines.report.collect import Examples, Inputs
from pipelines.report.content import Block, Gallery, Section, Text
from pipelines.report.galleries.attention import gallery, maps_of
from pipelines.report.galleries.images import opened
from pipelines.report.galleries.pictures import chosen
from store import BeyondClsError

if TYPE_CHECKING:
    from extract.datasets import ImageSet


def section(inputs: Inputs) -> Section:
    """A row for each chosen image, a column for each map, and why other maps are left out.

    Raises:
        BeyondClsError: a file of maps is damaged, or no image has a chosen id.
    """
    drawn, left_out = _gallery(inputs)
    blocks: list[Block] = []
    if drawn is not None:
        blocks += [
            Text(
                f"{_how_chosen(inputs.examples)} [cls] attention: of [cls] to the patches in the probed block, mean over "
                "attention heads. Weights: those that a trained head gives to the patches, mean over seeds. As Fig. 2, 8 and 9 "
                "of the paper."
            ),
            Text(
                "Each map is scaled to its own range, from dark (lowest) to bright (highest), so a nearly even map shows as "
                "much contrast as a selective one; the number below it is its peak as a multiple of an even map (1 / T). "
                "The first picture is the whole image; each map covers the part of it that its encoder saw, black where "
                "that was padded. White frames, where there are any, are the boxes that the data set gives for its objects. "
                "Heads that weigh all patches alike are not drawn.",
                kind="note",
            ),
            drawn,
        ]
    if left_out:
        blocks.append(Text("Left out:" if drawn else "Overlays are left out:", tuple(left_out), "notice"))
    return Section("overlays", "Where they look", tuple(blocks))


def _gallery(inputs: Inputs) -> tuple[Gallery | None, list[str]]:
    if inputs.examples.n == 0 and not inputs.examples.ids:
        return None, ["No examples were asked for."]
    folders = inputs.folders
    images = opened(folders.images, split=folders.split, form=folders.form, classes=folders.classes, pixels=folders.pixels)
    if isinstance(images, str):
        return None, [images]
    from extract.datasets import DataError

    ids = [sample.id for sample in images.samples]
    _check_ids(images, ids, inputs.examples)
    maps, left_out = maps_of(inputs, images)
    rows = chosen(ids, inputs.examples, [sample.label for sample in images.samples])
    try:
        return gallery(images, rows, maps) if maps else None, left_out
    except DataError as error:
        return None, [f"The images of {folders.images} cannot be read: {error}"]


def _check_ids(images: "ImageSet", ids: list[str], examples: Examples) -> None:
    if (wanted := next((one for one in examples.ids if one not in ids), None)) is not None:
        near = difflib.get_close_matches(wanted, ids, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"expected an id such as {ids[0]!r}"
        raise BeyondClsError(f"there is no image {wanted!r} among the {len(ids):,} of {images.source}; {meant} (--image)")


def _how_chosen(examples: Examples) -> str:
    """How the images were chosen, as a sentence."""
    if examples.ids:
        return "The test images that were asked for."
    if examples.seed is not None:
        return f"Test images drawn at random (seed {examples.seed})."
    return "The first test images of different classes."
