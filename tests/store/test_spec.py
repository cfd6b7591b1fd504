"""The key: content alone, and all of it."""

import hashlib
import json
from dataclasses import fields, replace
from typing import Any

import pytest

from store import FeatureSpec, StoreError
from tests.store.conftest import SPEC

OTHER: dict[str, Any] = {
    "weights": "2" * 32,
    "architecture": "another",
    "transform": {"mean": [0.4]},
    "data": "3" * 32,
    "n_images": 151,
    "blocks": (5,),
    "statistics": (),
    "maps": ("cls",),
    "n_views": 2,
    "point": "post-norm",
    "dtype": "float32",
    "compute_dtype": "bfloat16",
    "format_version": 3,
    "vectors": ("average/block0",),
    "truths": {"segmentation": "4" * 32},
    "drop_path": 0.1,
}


def test_every_field_is_in_the_table_below():
    assert OTHER.keys() == {f.name for f in fields(FeatureSpec)}


@pytest.mark.parametrize("name", OTHER)
def test_every_field_changes_the_key(name):
    changed = replace(SPEC, **{name: OTHER[name]})
    assert changed.key != SPEC.key
    assert (changed.encoder_key == SPEC.encoder_key) == (name in ("data", "n_images", "truths"))


def test_key_is_the_digest_of_canonical_json():
    described = json.dumps(SPEC.to_dict(), sort_keys=True, separators=(",", ":"))
    assert SPEC.key == hashlib.sha256(described.encode()).hexdigest()[:32]


def test_key_of_a_known_description():
    """Keys in stores that exist must not change without a new format version."""
    plain = replace(SPEC, vectors=())
    assert plain.key == "e3c1ce9e486acfb70f46acd54463b468"
    assert FeatureSpec.from_dict(plain.to_dict()) == plain
    assert {"vectors", "truths", "drop_path"}.isdisjoint(plain.to_dict()), "which programs that know no such field can read"


def test_vectors_by_block_and_in_words():
    names = [f"{kind}/block{block}" for kind in ("average", "cls") for block in (0, 10)]
    spec = replace(SPEC, vectors=tuple(names))
    assert (spec.vector_blocks, spec.is_pooled) == ((0, 10), False)
    assert (SPEC.vector_blocks, SPEC.is_pooled) == ((5,), True)
    assert SPEC.explained(replace(SPEC, vectors=("average/block5",))) == "vectors (pooled)"
    assert SPEC.explained(spec) == "vectors (average/block0, average/block10, average/block5, …)"


def test_key_does_not_depend_on_order_or_on_lists():
    turned = replace(SPEC, transform=dict(reversed(SPEC.transform.items())), blocks=[3, 5])
    assert turned.key == SPEC.key


def test_round_trip():
    described = json.loads(json.dumps(SPEC.to_dict()))
    assert FeatureSpec.from_dict(described) == SPEC


@pytest.mark.parametrize(("change", "named"), [({"colour": 1}, "unknown ['colour']"), ({"data": None}, "missing ['data']")])
def test_wrong_fields(change, named):
    described = {k: v for k, v in {**SPEC.to_dict(), **change}.items() if v is not None}
    with pytest.raises(StoreError) as caught:
        FeatureSpec.from_dict(described)
    assert named in str(caught.value)
