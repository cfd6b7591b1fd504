"""SimMIM: the official checkpoints of pretraining and of fine-tuning."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from extract.encoders import load_encoder
from store import BeyondClsError
from tests.extract.encoders.beit import SHARED, beit_reference, beit_shapes, with_indices
from tests.extract.encoders.official import assert_equal, double, loaded, random_images, random_state, shapes_of

WIDTH, HEADS, DEPTH = 768, 12, 2
DECODER = {"encoder.mask_token": (1, 1, WIDTH), "decoder.0.weight": (768, WIDTH, 1, 1), "decoder.0.bias": (768,)}


def pretrained(depth: int = DEPTH) -> dict[str, Tensor]:
    state = with_indices(random_state(beit_shapes(WIDTH, depth, HEADS, shared=True)))
    return {f"encoder.{name}": value for name, value in state.items()} | random_state(DECODER)


def fine_tuned_shapes(depth: int) -> dict[str, Sequence[int]]:
    """A table in every block, and a norm behind pooling."""
    shapes = beit_shapes(WIDTH, depth, HEADS, shared=False)
    return {f"fc_{name}" if name.startswith("norm.") else name: shape for name, shape in shapes.items()}


def fine_tuned(depth: int = DEPTH) -> dict[str, Tensor]:
    head = {"head.weight": (1000, WIDTH), "head.bias": (1000,)}
    return with_indices(random_state({**fine_tuned_shapes(depth), **head}))


def test_names_and_shapes_at_full_size() -> None:
    assert shapes_of("simmim-b16") == beit_shapes(WIDTH, 12, HEADS, shared=False)
    assert shapes_of("simmim-ft-b16") == fine_tuned_shapes(12)


def test_equals_plain_torch(tmp_path: Path) -> None:
    state = pretrained()
    encoder = loaded("simmim-b16", {"model": state}, tmp_path, depth=DEPTH)
    assert_equal(encoder, random_images(), beit_reference(double(state), random_images().double(), HEADS, "encoder."))


def test_fine_tuned_equals_plain_torch(tmp_path: Path) -> None:
    state = fine_tuned()
    encoder = loaded("simmim-ft-b16", {"model": state}, tmp_path, depth=DEPTH)
    assert_equal(encoder, random_images(), beit_reference(double(state), random_images().double(), HEADS))
    assert encoder.norm() == ({}, None)


def test_is_read_at_the_ninth_block() -> None:
    narrow = {"embed_dim": 24, "num_heads": 2}
    assert load_encoder("simmim-b16", random_seed=0, arguments=narrow).block == 8
    assert load_encoder("simmim-ft-b16", random_seed=0, arguments=narrow).block == 11


def test_norm_of_the_encoder(tmp_path: Path) -> None:
    state = pretrained(1)
    encoder = loaded("simmim-b16", {"model": state}, tmp_path, depth=1)
    weights, eps = encoder.norm()
    assert eps == 1e-6
    assert torch.equal(weights["weight"], state["encoder.norm.weight"])
    assert {m.eps for m in encoder.model.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


def test_settings_of_yacs_beside_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training script saves its settings as they are; they are read without yacs and without running code."""

    class CfgNode(dict[str, Any]):
        def __init__(self, **values: Any):
            super().__init__(values)
            self.__dict__["__immutable__"] = True

    yacs = ModuleType("yacs.config")
    CfgNode.__module__, CfgNode.__qualname__, yacs.CfgNode = "yacs.config", "CfgNode", CfgNode  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "yacs", ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", yacs)
    state = pretrained(1)
    settings = CfgNode(MODEL=CfgNode(TYPE="vit", DROP=0.1, SIZES=[1, 2]), BASE=("",))
    torch.save({"model": state, "config": settings, "epoch": 799}, tmp_path / "written.pth")
    monkeypatch.delitem(sys.modules, "yacs.config")
    encoder = load_encoder("simmim-b16", checkpoint=tmp_path / "written.pth", arguments={"depth": 1})
    assert encoder.weights == loaded("simmim-b16", {"model": state}, tmp_path, depth=1).weights


def test_fine_tuned_weights_are_not_pretrained_ones(tmp_path: Path) -> None:
    with pytest.raises(
        BeyondClsError, match=r"has a classifier \(head\.weight, head\.bias\), .* with --model beit_base_patch16"
    ):
        loaded("simmim-b16", {"model": fine_tuned(1)}, tmp_path, depth=1)
    headless = {name: value for name, value in fine_tuned(1).items() if not name.startswith("head.")}
    with pytest.raises(BeyondClsError, match=r"missing: norm\.bias, norm\.weight; unexpected: fc_norm\.bias, fc_norm\.weight"):
        loaded("simmim-b16", {"model": headless}, tmp_path, depth=1)


def test_beit_after_fine_tuning(tmp_path: Path) -> None:
    """Its tensors have the same names; what lies beside them differs."""
    with pytest.raises(BeyondClsError, match=r"it holds `args`, which BEiT's training script writes .* with --model beit_base"):
        loaded("simmim-ft-b16", {"model": fine_tuned(1), "args": Namespace()}, tmp_path, depth=1)


def test_another_order_of_positions(tmp_path: Path) -> None:
    state = pretrained(1)
    index = state[f"encoder.{SHARED}".replace("bias_table", "index")]
    index[1:, 1:] = index[1:, 1:].T.clone()  # of keys relative to queries
    with pytest.raises(BeyondClsError, match=r"rel_pos_bias\.relative_position_index \[197, 197\] is not BEiT's order"):
        loaded("simmim-b16", {"model": state}, tmp_path, depth=1)


def test_swin_is_another_architecture(tmp_path: Path) -> None:
    """SimMIM's Swin Transformers are published beside its ViT."""
    swin = random_state({"encoder.layers.0.blocks.0.norm1.weight": (128,), "encoder.patch_embed.proj.weight": (128, 3, 4, 4)})
    with pytest.raises(BeyondClsError, match=r"unexpected: layers\.0\.blocks\.0\.norm1\.weight; other shape: patch_embed"):
        loaded("simmim-b16", {"model": swin}, tmp_path, depth=1)
