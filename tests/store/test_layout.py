"""Names, rows that share a digest, and the key: content alone, and all of it."""

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import ArrayLayout, FeatureSpec, StoreError
from store.format.layout import ArrayName, kind_of
from tests.store.conftest import SPEC


@pytest.mark.parametrize(
    ("width", "chunk_rows", "expected"),
    # 64 KiB are 32 rows of 2 KiB; 16 rows would be less, and do not divide 24
    [(1, 32, 32), (513, 32, 32), (1024, 32, 16), (1023, 32, 32), (1024, 24, 24), (16384, 32, 1), (10**6, 32, 1)],
)
def test_rows_that_share_a_digest(width, chunk_rows, expected):
    layout = ArrayLayout("patch/block5/view0", (5, width), "float32", ("image", "channel"), chunk_rows * 2, chunk_rows)
    assert layout.checked_rows == expected


@pytest.mark.parametrize("codec", [None, "int4"])
def test_layout_of_its_own_metadata(codec):
    layout = ArrayLayout("patch/block5/view0", (75, 2, 3), "uint8", ("image", "patch", "channel"), 64, codec=codec)
    assert ArrayLayout.from_zarr(layout.name, json.loads(layout.to_zarr({"shards": []}))) == layout


NAMES = {
    "images/crop/view1": ArrayName("images", "crop", None, 1),
    "norm/weight": ArrayName("norm", "weight"),
    "patch/block11/view3-scale": ArrayName("patch", "", 11, 3, is_scale=True),
    "statistics/cls_self/view0": ArrayName("statistics", "cls_self", None, 0),
    "attention/cls/block5/view0": ArrayName("attention", "cls", 5, 0),
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


# -- the key -----------------------------------------------------------------------------------------------------------


def test_key_is_the_digest_of_canonical_json():
    described = json.dumps(SPEC.to_dict(), sort_keys=True, separators=(",", ":"))
    assert SPEC.key == hashlib.sha256(described.encode()).hexdigest()[:32]
    turned = replace(SPEC, transform=dict(reversed(SPEC.transform.items())), blocks=[3, 5])
    assert turned.key == SPEC.key, "whatever the order, and of lists as of tuples"


def test_key_of_a_known_description():
    """Keys in stores that exist must not change without a new format version."""
    plain = replace(SPEC, vectors=())
    assert plain.key == "e3c1ce9e486acfb70f46acd54463b468"
    assert {"vectors", "truths", "drop_path"}.isdisjoint(plain.to_dict()), "which programs that know no such field can read"
    for spec in (plain, SPEC):
        assert FeatureSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_vectors_by_block_and_in_words():
    names = [f"{kind}/block{block}" for kind in ("average", "cls") for block in (0, 10)]
    spec = replace(SPEC, vectors=tuple(names))
    assert (spec.vector_blocks, spec.is_pooled) == ((0, 10), False)
    assert (SPEC.vector_blocks, SPEC.is_pooled) == ((5,), True)
    assert SPEC.explained(replace(SPEC, vectors=("average/block5",))) == "vectors (pooled)"
    assert SPEC.explained(spec) == "vectors (average/block0, average/block10, average/block5, …)"


def test_wrong_fields():
    described = SPEC.to_dict()
    del described["data"]
    with pytest.raises(StoreError, match=r"missing \['data'\], unknown \['colour'\]"):
        FeatureSpec.from_dict(described | {"colour": 1})
