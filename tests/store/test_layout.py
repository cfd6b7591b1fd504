"""Names, index arithmetic and bytes of a shard, against closed forms and against zarr."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import ArrayLayout
from store.format.layout import ArrayName, kind_of


@pytest.mark.parametrize(
    ("width", "chunk_rows", "expected"),
    [
        *[(1, 32, 32), (512, 32, 32), (513, 32, 32)],  # 64 KiB are 32 rows of 2 KiB
        *[(1024, 32, 16), (1023, 32, 32), (1024, 24, 24)],  # 16 rows would be less; they do not divide 24
        *[(16384, 32, 1), (10**6, 32, 1)],
    ],
)
def test_rows_that_share_a_digest(width, chunk_rows, expected):
    layout = ArrayLayout("patch/block5/view0", (5, width), "float32", ("image", "channel"), chunk_rows * 2, chunk_rows)
    assert layout.checked_rows == expected


@pytest.mark.parametrize("codec", [None, "int4"])
def test_layout_of_its_own_metadata(codec):
    layout = ArrayLayout("patch/block5/view0", (75, 2, 3), "uint8", ("image", "patch", "channel"), 64, codec=codec)
    assert ArrayLayout.from_zarr(layout.name, json.loads(layout.to_zarr({"shards": []}))) == layout


NAMES = {
    "images/label": ArrayName("images", "label"),
    "images/crop/view1": ArrayName("images", "crop", None, 1),
    "norm/weight": ArrayName("norm", "weight"),
    "cls/block0/view0": ArrayName("cls", "", 0, 0),
    "patch/block11/view3": ArrayName("patch", "", 11, 3),
    "patch/block11/view3-scale": ArrayName("patch", "", 11, 3, is_scale=True),
    "statistics/cls_self/view0": ArrayName("statistics", "cls_self", None, 0),
    "attention/cls/block5/view0": ArrayName("attention", "cls", 5, 0),
    "attention/cls/view0": ArrayName("attention", "cls", None, 0),
    "attention/cls/block5": ArrayName("attention", "cls", 5),
    "block1": ArrayName("block1"),
    "patch/view0/block5": ArrayName("patch", "view0", 5),
    "patch/block05/view-1": ArrayName("patch", "block05/view-1"),
    "patch/block٣": ArrayName("patch", "block٣"),
}


@pytest.mark.parametrize("name", NAMES)
def test_parts(name):
    assert ArrayName.parse(name) == NAMES[name]
    assert kind_of(name) == NAMES[name].kind


PART = st.sampled_from(["patch", "cls", "block0", "block12", "block012", "view0", "view7", "a-scale", "view1-scale"])


@given(st.lists(PART, min_size=1, max_size=5).map("/".join))
def test_any_name_is_its_parts(name):
    assert str(ArrayName.parse(name)) == name
