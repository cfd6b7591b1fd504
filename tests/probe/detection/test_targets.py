"""What a view shows of objects, against a brute-force drawing; what is left out; and the way back to the original."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from probe.detection.detected import Detected, in_original
from probe.detection.sets import notes_on, survey
from probe.detection.targets import boxes_from_view, target_of
from store import BeyondClsError
from store.truths import InstancesOfImage, boxes_in_view
from store.truths.rle import decode, encode
from tests.probe.detection.tiny import write_objects
from tests.truths import Instance

H, W = 40, 60
FRAME = (64, 96)
CROPS = {"whole": (0, 0, W, H), "crop": (10, 5, 50, 35), "border": (-6, -4, 66, 44)}


def objects(masks: np.ndarray, boxes, crowds=None) -> InstancesOfImage:
    n = len(masks)
    areas, crowd = masks.sum((1, 2)).astype(np.float32), np.zeros(n, bool) if crowds is None else np.array(crowds)
    corners = np.array(boxes, np.float32).reshape(n, 4)
    return InstancesOfImage(np.arange(n), corners, areas, crowd, tuple(encode(masks)), (H, W))


def rectangles(*boxes) -> np.ndarray:
    masks = np.zeros((len(boxes), H, W), bool)
    for mask, (x0, y0, x1, y1) in zip(masks, boxes, strict=True):
        mask[y0:y1, x0:x1] = True
    return masks


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("shows", CROPS)
def test_what_a_view_shows(shows, flip):
    boxes = (12, 6, 30, 20), (40, 20, 58, 38)
    masks = rectangles(*boxes)
    x0, y0, x1, y1 = crop = np.array(CROPS[shows], np.float32)
    target = target_of(objects(masks, boxes), crop, flip, FRAME, True)
    assert target["labels"].tolist() == [1, 2], "0 is the background"
    for mask, box, drawn in zip(masks, target["boxes"], target["masks"], strict=True):
        for row, column in np.ndindex(FRAME):
            across = (FRAME[1] - 1 - column if flip else column) + 0.5
            x, y = x0 + across * (x1 - x0) / FRAME[1], y0 + (row + 0.5) * (y1 - y0) / FRAME[0]
            inside = 0 <= x < W and 0 <= y < H and mask[int(np.floor(y)), int(np.floor(x))]
            assert drawn[row, column] == inside
        rows, columns = torch.where(drawn)
        around = torch.stack([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        assert (around - box).abs().max() <= 1, "box and mask agree"


def test_what_is_left_out():
    masks = rectangles((12, 6, 30, 20), (0, 0, 9, 4), (12, 6, 30, 20), (12, 6, 30, 20), (30, 20, 40, 30))
    masks[4] = False
    masks[4, 0, 0] = True  # a mask outside of the crop, whose box is in it
    boxes = [(12, 6, 30, 20), (0, 0, 9, 4), (12, 6, 30, 20), (12, 6, 12, 20), (30, 20, 40, 30)]
    image = objects(masks, boxes, [False, False, True, False, False])
    crop = np.array(CROPS["crop"], np.float32)
    assert target_of(image, crop, False, FRAME, True)["labels"].tolist() == [1]
    assert target_of(image, crop, False, FRAME, False)["labels"].tolist() == [1, 5], "without masks the box counts"
    sliver = objects(rectangles((0, 6, 11, 20)), [(0.0, 6.0, 10.4, 20.0)])  # 0.4 of 40 pixels in 96
    assert target_of(sliver, crop, False, FRAME, True)["labels"].tolist() == [], "less than a pixel of the box"
    empty = target_of(objects(masks[:0], []), crop, False, FRAME, True)
    assert (empty["boxes"].shape, empty["labels"].shape, empty["masks"].shape) == ((0, 4), (0,), (0, *FRAME))
    bare = InstancesOfImage(image.labels, image.boxes, image.areas, image.crowds, None, image.size)
    with pytest.raises(BeyondClsError, match="have boxes, but no masks; train with --no-masks"):
        target_of(bare, crop, False, FRAME, True)


@given(
    st.lists(st.floats(-50, 150, width=32), min_size=4, max_size=4),
    st.tuples(*[st.floats(-20, 20, width=32)] * 2, *[st.floats(1, 90, width=32)] * 2),
    st.booleans(),
)
def test_boxes_come_back(box, crop, flip):
    x0, y0, width, height = crop
    crop, boxes = (x0, y0, x0 + width, y0 + height), np.array([box], np.float64)
    back = boxes_from_view(boxes_in_view(boxes, crop, flip, FRAME), crop, flip, FRAME)
    np.testing.assert_allclose(back, boxes, atol=1e-6)


def in_frame(n: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(n, 2, generator=generator) * torch.tensor([50.0, 30.0])
    boxes = torch.cat([corner, corner + 5 + torch.rand(n, 2, generator=generator) * 28], 1)
    masks = torch.rand(n, 1, 28, 28, generator=generator)
    return {"boxes": boxes, "labels": torch.arange(n) + 1, "scores": torch.linspace(0.9, 0.1, n), "masks": masks}


def test_detections_of_squashed_images_are_as_torchvision_places_them():
    detected = in_original(in_frame(), CROPS["whole"], False, FRAME, (H, W))
    transform = GeneralizedRCNNTransform(1, 1, [0.0], [1.0]).eval()
    expected = transform.postprocess([in_frame()], [FRAME], [(H, W)])[0]
    np.testing.assert_allclose(detected.boxes, expected["boxes"].numpy(), rtol=1e-5)
    for counts, mask in zip(detected.counts, expected["masks"], strict=True):
        assert (decode(counts, (H, W)) == (mask[0] > 0.5).numpy()).all()
    assert detected.labels.tolist() == [0, 1, 2, 3, 4]


def test_a_mirrored_view_gives_the_same_detections():
    plain, mirrored = in_frame(), in_frame()
    mirrored["boxes"][:, [0, 2]] = FRAME[1] - plain["boxes"][:, [2, 0]]
    mirrored["masks"] = plain["masks"].flip(3)
    ours, theirs = (in_original(f, CROPS["crop"], i > 0, FRAME, (H, W)) for i, f in enumerate((plain, mirrored)))
    np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=1e-4)
    assert ours.counts == theirs.counts


def test_detections_in_the_border_are_left_out():
    one = {name: values[:2] for name, values in in_frame().items()}
    one["boxes"] = torch.tensor([[0.0, 0.0, 6.0, 5.0], [0.0, 0.0, 40.0, 40.0]])  # the first is in the border alone
    one["masks"] = (torch.arange(28) >= 14).float().expand(2, 1, 28, 28)  # the right half
    detected = in_original(one, CROPS["border"], False, FRAME, (H, W))
    assert detected.labels.tolist() == [1]
    np.testing.assert_allclose(detected.boxes, [[0, 0, 24, 26]])
    (counts,) = detected.counts
    columns = np.flatnonzero(decode(counts, (H, W)).any(0))
    assert abs(columns[0] - 9) <= 1, "half of the whole box, from -6 to 24, not of what is in the image"


def test_cocos_format():
    one = Detected(np.array([1]), np.array([0.5], np.float32), np.array([[1, 2, 5, 9]], np.float32), (b"abc",), (H, W))
    expected = {"image_id": 42, "category_id": 2, "bbox": [1, 2, 4, 7], "score": 0.5}
    assert one.to_coco(42) == [expected | {"segmentation": {"size": [H, W], "counts": "abc"}}]


def test_sizes_of_objects_outside_of_a_crop(tmp_path):
    def one(box, area, crowd=False):
        mask = np.zeros((1, 64, 64), bool)
        mask[0, :2, :2] = True
        return Instance(0, box, area, crowd, encode(mask)[0])

    objects = [
        [one((0, 0, 8, 8), 1023), one((0, 0, 9, 9), 9215), one((0, 0, 40, 40), 9216), one((20, 20, 30, 30), 1024)],
        [one((1, 1, 1, 5), 16, crowd=True)],
        [one((20, 20, 20, 30), 16), one((20, 20, 52.1, 30), 20_000)],  # a third of a pixel of the frame is nothing
    ]
    store = write_objects(tmp_path / "set", n=3, objects=objects, crop=(12, 12, 52, 52))
    counted = survey(store, np.arange(3))
    assert counted == {
        **{"n_images": 3, "n_without": 1, "n_crowds": 1, "n_without_area": 1},
        "objects": {"small": 1, "medium": 2, "large": 2},
        "outside": {"small": 1, "medium": 1, "large": 0},
        "cut": {"small": 0, "medium": 0, "large": 1},
    }
    assert [re.findall(r"\d+", note) for note in notes_on(counted, "test")] == [["1", "3"], ["1"], ["2", "5", "1", "1"]]
