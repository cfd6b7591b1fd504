"""The key: content alone, and all of it."""

import hashlib
import json
from dataclasses import fields, replace

import pytest

from store import FeatureSpec, StoreError
from tests.store.conftest import SPEC


@pytest.mark.parametrize("name", [field.name for field in fields(FeatureSpec)])
def test_every_field_changes_the_key(name):
    """That of the encoder: tests/store/test_document.py."""
    assert replace(SPEC, **{name: "changed"}).key != SPEC.key


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
