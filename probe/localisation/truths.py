"""The true boxes of a feature set as a view of its images shows them, and which part of the images that is."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from probe.localisation.boxes import into_view
from probe.views import Part, View
from store import BeyondClsError, FeatureStore

OFFICIAL_SIZE = 224  # pixels; Choe et al. 2020 squash the whole image to it


@dataclass(frozen=True)
class Frame:
    """The frame in which boxes are compared.

    Attributes:
        shows: the "whole" image, squashed where it is not square; all of it, "padded" to a square; a central "crop"; or a
            "random" crop.
        size: its side in pixels.
        percent_outside: share of the area of all boxes that is outside of the frame, 0…100.
    """

    shows: Part
    size: int
    percent_outside: float

    @property
    def official(self) -> bool:
        """Whether it is the frame of Choe et al. 2020, so that numbers compare with published ones."""
        return self.shows == "whole" and self.size == OFFICIAL_SIZE

    @property
    def words(self) -> str:
        side = f"{self.size} x {self.size} pixels"
        outside = f"{self.percent_outside:.1f} % of the boxes' area lies outside of it"
        return {
            "whole": f"whole image, squashed to {side}",
            "padded": f"whole image, padded to a square, in {side}",
            "crop": f"central crop, in {side}; {outside}",
            "random": f"random crop, in {side}; {outside}",
        }[self.shows]

    def to_dict(self) -> dict[str, object]:
        """Plain values, as in localisation.json."""
        return {**asdict(self), "official": self.official, "words": self.words}


@dataclass(frozen=True, eq=False)
class BoxTruths:
    """Boxes of the images that can be measured: those that are valid and have a box.

    Attributes:
        rows: of the N images in their feature set, ascending.
        boxes: [m, 4] of each image, in the evaluation frame. An image whose boxes are all outside of the crop stays, with no
            boxes: its object counts as not found, or a tight crop would look better than a wide one.
        counts: `n_images`, and numbers of other images and of boxes by what became of them.
        frame: the part of the images that the view shows.
        crops: of each image, x0, y0, x1, y1 that the view shows, in pixels of the original.
        flips: whether it is mirrored.
    """

    rows: Int[np.ndarray, "N"]
    boxes: tuple[Int[np.ndarray, "_m 4"], ...]
    counts: dict[str, int]
    frame: Frame
    crops: Float[np.ndarray, "N 4"]
    flips: Bool[np.ndarray, "N"]


def truths_of(store: FeatureStore, size: int, view: int = 0) -> BoxTruths:
    """Boxes in a frame of `size` by `size` pixels, which the view fills.

    Raises:
        BeyondClsError: the set has no boxes; StoreError: it has no such view, or windows.
    """
    store.check_evaluation_crop()
    boxes = _boxes(store)
    n_boxes = np.array([len(of_image) for of_image in boxes])
    rows = np.flatnonzero((n_boxes > 0) & store.valid)
    if not len(rows):
        raise BeyondClsError(
            f"{store.where} has boxes, but none of a valid image; extract it again from images that can be read"
        )
    seen = View(store, view)
    in_view = [into_view(boxes[row], *seen.shows(row), size) for row in rows.tolist()]
    area, area_shown = sum(s.area for s in in_view), sum(s.area_shown for s in in_view)
    frame = Frame(seen.part(rows), size, 100 * (1 - area_shown / area) if area else 0.0)
    counts = {
        "n_images": len(rows),
        "n_images_invalid": int((~store.valid).sum()),
        "n_images_without_box": int(store.valid.sum()) - len(rows),
        "n_images_outside": sum(not len(s.boxes) for s in in_view),
        "n_boxes": int(n_boxes[rows].sum()),
        "n_boxes_outside": sum(s.n_outside for s in in_view),
        "n_boxes_cut": sum(s.n_cut for s in in_view),
    }
    return BoxTruths(rows, tuple(s.boxes for s in in_view), counts, frame, seen.crops[rows], seen.flips[rows])


def has_boxes(store: FeatureStore) -> bool:
    """Whether the set has boxes in addition to the labels of images; instances have boxes of their own."""
    return "images/boxes" in store.attributes["arrays"]


def _boxes(store: FeatureStore) -> Sequence[Float[np.ndarray, "_m 4"]]:
    """The boxes of each image, in pixels of the original: those of the set, or of its instances, but for crowds.

    Raises:
        BeyondClsError: it has neither.
    """
    if has_boxes(store):
        corners = store.array("images/boxes").all()  # [N, M, 4], padded with -1
        return [corners[row][corners[row, :, 2] >= 0] for row in range(len(store))]
    if "instances" in store.spec.truths:
        images = [store.instances.of(row) for row in range(len(store))]
        return [image.boxes[~image.crowds] for image in images]
    maps = "; `beyondcls segment --foreground` compares with label maps" if "segmentation" in store.spec.truths else ""
    raise BeyondClsError(
        f"{store.where} has no boxes, so there is nothing to compare its maps with; extract images with boxes: a .csv with "
        f"columns x0, y0, x1, y1, or a published data set that has them (CUB-200-2011, ImageNet-1k, COCO){maps}"
    )
