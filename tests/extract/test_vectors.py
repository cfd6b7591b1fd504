"""[cls] and the average patch token of every block, and what an encoder's own pooling gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from extract.requests import Request
from extract.run import create
from extract.sample import check_by_sample
from extract.writing import Settings
from store import FeatureStore, StoreError
from store.format.layout import KINDS
from tests.extract.conftest import BAD, TWO
from tests.extract.tiny import tiny_encoder
from tests.folders import files


def test_averages_are_of_tokens_before_they_are_rounded(make_set, tmp_path):
    """Of all blocks, those whose patch tokens are kept and the others, in each view."""
    tokens = make_set(tmp_path / "tokens", blocks=(0, 1), dtype="float32", views=2)
    few = make_set(tmp_path / "few", dtype="int8", views=2, vectors="all")
    assert [few.spec.blocks, few.spec.vector_blocks] == [(1,), (0, 1)]
    assert few.spec.vectors == ("average/block0", "average/block1", "cls/block0", "cls/block1")
    for block, view in ((0, 1), (1, 0)):
        expected = tokens.tokens("patch", block, view).all().astype(np.float64).mean(1)
        np.testing.assert_allclose(few.tokens("average", block, view).all(), expected, rtol=1e-5, atol=1e-6)
        assert np.array_equal(few.tokens("cls", block, view).all(), tokens.tokens("cls", block, view).all())
    assert (few.tokens("average", 0).rows(BAD) == 0).all(), "images that cannot be read"


def test_a_set_without_them_says_nothing_of_them_and_is_in_the_way(run, make_set, tmp_path):
    plain = make_set(tmp_path / "f")
    assert "vectors" not in plain.attributes["spec"]
    assert {"average", "pooled"}.isdisjoint(plain.kinds)
    with pytest.raises(StoreError, match=r"vectors \(average/block0, average/block1, cls/block0, …\) differ"):
        run(tmp_path / "f", vectors="all")


class TestWithoutPatchTokens:
    def test_vectors_are_those_of_a_set_with_them(self, make_set, tmp_path):
        tokens = make_set(tmp_path / "tokens", vectors="all", views=2)
        alone = make_set(tmp_path / "alone", vectors="only", views=2)
        assert (alone.spec.blocks, alone.spec.vectors, alone.spec.deepest) == ((), ("average/block1", "cls/block1"), 1)
        assert {"patch", "registers"}.isdisjoint(alone.kinds)
        assert all((tmp_path / "alone" / kind).is_dir() for kind in KINDS), "outs of a stage"
        for kind in ("average", "cls"):
            for view in range(2):
                assert np.array_equal(alone.tokens(kind, view=view).all(), tokens.tokens(kind, 1, view).all())
        assert np.array_equal(alone.attention("cls").all(), tokens.attention("cls").all())
        with pytest.raises(StoreError, match=r"has no patch tokens .*--extend --vectors kept"):
            alone.tokens("patch")

    def test_they_get_patch_tokens_and_lose_them_again_and_damage_is_repaired(self, run, make_set, images, encoder, tmp_path):
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
        (tmp_path / "f/average/block1/view0/c/1/0").unlink()
        run(tmp_path / "f", vectors="only", existing="repair")
        assert files(tmp_path / "f") == alone


@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("vit_base_patch16_siglip_224", {}),
        ("vit_pe_core_tiny_patch16_384", {"ref_feat_shape": (4, 4), "num_classes": 0}),
    ],
    ids=["siglip", "perception encoder, which has [cls]"],
)
def test_pooling_by_attention_is_what_the_model_gives(model, arguments):
    encoder, pictures = tiny_encoder(model=model, **arguments), torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = encoder.model(pictures)  # without a classifier
    pooled = encoder(pictures, [1], encoder.statistics, pooled=True).pooled
    torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-5)
    assert encoder(pictures, [1]).pooled is None


def test_a_set_without_what_its_encoder_pools_gets_it(run, images, encoder, tmp_path):
    asked = {"encoder": tiny_encoder(model="vit_base_patch16_siglip_224"), "statistics": ()}
    request = Request.resolve(images=images, shard_rows=32, **asked)
    assert (request.spec.vectors, Request.resolve(encoder, images).spec.vectors) == (("pooled",), ())
    create(replace(request, pooled=False), tmp_path / "f", Settings(on_error="record"))
    with pytest.raises(StoreError, match=r"vectors \(pooled\) differ"):
        run(tmp_path / "f", **asked)
    pooled = run(tmp_path / "f", **asked, existing="update").array("pooled/view0")
    assert (pooled.shape, pooled.layout.codec) == ((70, 32), "float16")
