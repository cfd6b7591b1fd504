"""[cls] and the average patch token of every block, and what an encoder's own pooling gives."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from extract.encoders import Encoder
from extract.requests import Request
from extract.run import create
from extract.sample import check_by_sample
from extract.writing import Settings
from store import BeyondClsError, FeatureStore, StoreError
from store.format.layout import KINDS
from tests.extract.conftest import BAD, TWO, N
from tests.extract.tiny import tiny_encoder
from tests.folders import files

RECORD = Settings(on_error="record")
POOLING = {  # models of timm that pool by attention: with and without [cls]
    "siglip": ("vit_base_patch16_siglip_224", {}),
    "perception encoder": ("vit_pe_core_tiny_patch16_384", {"ref_feat_shape": (4, 4), "num_classes": 0}),
}


@pytest.fixture(scope="module")
def pooling():
    return tiny_encoder(model=POOLING["siglip"][0])


def test_averages_are_of_tokens_before_they_are_rounded(make_set, tmp_path):
    """Of all blocks, those whose patch tokens are kept and the others, in each view."""
    tokens = make_set(tmp_path / "tokens", blocks=(0, 1), dtype="float32", views=2)
    few = make_set(tmp_path / "few", dtype="int8", views=2, vectors="all")
    assert [few.spec.blocks, few.spec.vector_blocks] == [(1,), (0, 1)]
    for view in range(2):
        for block in (0, 1):
            expected = tokens.tokens("patch", block, view).all().astype(np.float64).mean(1)
            np.testing.assert_allclose(few.tokens("average", block, view).all(), expected, rtol=1e-5, atol=1e-6)
            assert np.array_equal(few.tokens("cls", block, view).all(), tokens.tokens("cls", block, view).all())
    assert (few.tokens("average", 0).rows(BAD) == 0).all(), "images that cannot be read"


def test_without_them_a_set_is_what_it_was(images, encoder, make_set, tmp_path):
    plain = make_set(tmp_path / "f")
    assert "vectors" not in plain.attributes["spec"]
    assert {"average", "pooled"}.isdisjoint(plain.kinds)
    both = Request.resolve(encoder, images, blocks=(0, 1), vectors="all").spec
    assert both.vectors == ("average/block0", "average/block1", "cls/block0", "cls/block1")
    assert replace(both, vectors=()) == Request.resolve(encoder, images, blocks=(0, 1)).spec


def test_a_set_without_them_is_in_the_way(run, make_set, tmp_path):
    make_set(tmp_path / "f")
    with pytest.raises(StoreError, match=r"vectors \(average/block0, average/block1, cls/block0, …\) differ.*--extend"):
        run(tmp_path / "f", vectors="all")


def test_a_sample_shows_averages_that_changed(images, encoder, make_set, tmp_path, monkeypatch):
    store, request = make_set(tmp_path / "f", vectors="all"), Request.resolve(encoder, images, statistics=TWO, vectors="all")
    assert check_by_sample(request, store).agrees
    encode = Encoder.__call__

    def changed(self, *given, **options):
        out = encode(self, *given, **options)
        out.average = {block: 1.01 * values for block, values in out.average.items()}
        return out

    monkeypatch.setattr(Encoder, "__call__", changed)
    check = check_by_sample(request, store)
    assert {d.array for d in check.worst if d.ratio > 1} == {"average/block0/view0", "average/block1/view0"}


class TestWithoutPatchTokens:
    def test_vectors_are_those_of_a_set_with_them(self, make_set, tmp_path):
        tokens = make_set(tmp_path / "tokens", vectors="all", views=3)
        alone = make_set(tmp_path / "alone", vectors="only", views=3)
        assert (alone.spec.blocks, alone.spec.vectors, alone.spec.deepest) == ((), ("average/block1", "cls/block1"), 1)
        assert {"patch", "registers"}.isdisjoint(alone.kinds)
        assert all((tmp_path / "alone" / kind).is_dir() for kind in KINDS), "outs of a stage"
        for kind in ("average", "cls"):
            for view in range(3):
                assert np.array_equal(alone.tokens(kind, view=view).all(), tokens.tokens(kind, 1, view).all())
        assert np.array_equal(alone.attention("cls").all(), tokens.attention("cls").all())
        with pytest.raises(StoreError, match=r"has no patch tokens .*--extend --vectors kept"):
            alone.tokens("patch")

    def test_they_get_patch_tokens_and_lose_them_again(self, run, make_set, images, encoder, tmp_path):
        make_set(tmp_path / "f", vectors="only")
        alone = files(tmp_path / "f")
        run(tmp_path / "f", existing="extend")
        both = FeatureStore.open(tmp_path / "f")
        assert (both.spec.blocks, both.spec.vector_blocks) == ((1,), (1,))
        assert np.array_equal(both.tokens("patch").all(), make_set(tmp_path / "g").tokens("patch").all())
        run(tmp_path / "f", vectors="only", existing="update")
        assert files(tmp_path / "f") == alone
        request = Request.resolve(encoder, images, statistics=TWO, vectors="only", shard_rows=32)
        assert check_by_sample(request, FeatureStore.open(tmp_path / "f")).agrees

    def test_damage_is_repaired(self, run, make_set, tmp_path):
        make_set(tmp_path / "f", vectors="only", views=2)
        before = files(tmp_path / "f")
        (tmp_path / "f/average/block1/view1/c/1/0").unlink()
        run(tmp_path / "f", vectors="only", views=2, existing="repair")
        assert files(tmp_path / "f") == before

    def test_blocks_are_those_asked_for(self, images, encoder):
        assert Request.resolve(encoder, images, vectors="only", blocks=[0, -1]).spec.vector_blocks == (0, 1)
        with pytest.raises(BeyondClsError, match="there is no block 5"):
            Request.resolve(encoder, images, vectors="only", blocks=[5])


class TestPooling:
    """Of an encoder that pools by attention."""

    @pytest.mark.parametrize("name", POOLING)
    def test_is_what_the_model_gives(self, name):
        model, arguments = POOLING[name]
        encoder = tiny_encoder(model=model, **arguments)
        pictures = torch.randn(3, 3, 32, 32)
        encoded = encoder(pictures, [1], encoder.statistics, pooled=True)
        with torch.no_grad():
            expected = encoder.model(pictures)  # without a classifier
        assert encoded.pooled is not None
        torch.testing.assert_close(encoded.pooled, expected, rtol=1e-5, atol=1e-5)
        assert encoder(pictures, [1]).pooled is None

    def test_of_others_there_is_none(self, images, encoder, pooling):
        assert [Request.resolve(one, images).spec.vectors for one in (encoder, pooling)] == [(), ("pooled",)]

    def test_a_set_without_it_gets_it(self, run, images, pooling, tmp_path):
        request = Request.resolve(pooling, images, statistics=(), shard_rows=32)
        create(replace(request, pooled=False), tmp_path / "f", RECORD)
        asked = {"encoder": pooling, "statistics": ()}
        with pytest.raises(StoreError, match=r"vectors \(pooled\) differ.*or add to it with --extend"):
            run(tmp_path / "f", **asked)
        shutil.copytree(tmp_path / "f", tmp_path / "g")
        run(tmp_path / "f", **asked, existing="update")
        run(tmp_path / "g", **asked, existing="extend")
        assert files(tmp_path / "f") == files(tmp_path / "g")
        store = FeatureStore.open(tmp_path / "f")
        assert (store.array("pooled/view0").shape, store.array("pooled/view0").layout.codec) == ((N, 32), "float16")
