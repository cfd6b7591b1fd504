"""The attention kernel: against float64, interpreted; in all encoders, on a GPU that is not there."""

import math
import os
import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from extract.attention import PER_BLOCK, STATISTICS, Attention, TokenLayout, facts_of, fused
from extract.attention import watch as watch_file
from extract.attention.fused import TILES, Tiles, applies_to, attend_fused, norms_of, tiles_of
from extract.attention.watch import LOG2_E, attend
from extract.encoders import ENCODERS, Encoded, Encoder, load_encoder
from store import kernels
from tests.extract.encoders.published import PUBLISHED
from tests.extract.tiny import sharpen, tiny_encoder
from tests.fake_gpu import ON_A_FAKE_GPU
from tests.kernels.fake import Launches, Started, fake_cuda, placed

pytest.importorskip("triton", reason="there are no kernels without Triton")
INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, kernels are compiled for it")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
Case = dict[str, Any]
# Tokens that fill no tile, of which one, none or many are no patches.
CASES: dict[str, Case] = {
    "several tiles": {"n_tokens": 70},
    "one tile, not full": {"n_tokens": 21, "width": 24},
    "no prefix": {"n_tokens": 33, "prefix": 0},
    "a prefix beyond a tile": {"n_tokens": 101, "prefix": 37, "heads": 1},
    "width 80": {"n_tokens": 34, "width": 80},
    "a bias of each image": {"n_tokens": 34, "bias": (2, 1)},
    "extreme": {"n_tokens": 40, "prefix": 0, "sharpness": 2000.0},
    "masked": {"n_tokens": 70, "bias": (1, 2), "masked": 0.5},
    "nothing of the first tile": {"n_tokens": 70, "bias": (1, 1), "masked": slice(0, 33)},
}


def drawn(
    n_tokens: int,
    heads: int = 2,
    width: int = 16,
    prefix: int = 1,
    sharpness: float = 3.0,
    bias: tuple[int, int] | None = None,
    masked: float | slice = 0.0,
) -> tuple[TokenLayout, list[Tensor], Tensor | None]:
    """Layout; queries, keys and values as timm hands them over, none contiguous; a bias in units of 1."""
    generator = torch.Generator().manual_seed(n_tokens)
    query, key, value = torch.randn(2, n_tokens, 3, heads, width, generator=generator).permute(2, 0, 3, 1, 4)
    added = None
    if bias is not None:
        added = torch.randn(*bias, n_tokens, n_tokens, generator=generator)
        if isinstance(masked, slice):
            added[..., masked] = -torch.inf
        else:
            hidden = torch.rand(added.shape, generator=generator) < masked
            added.masked_fill_(hidden & ~torch.eye(n_tokens, dtype=torch.bool), -torch.inf)
            added[..., -1] = 0  # a patch that all see
    return TokenLayout(prefix > 0, prefix), [query * sharpness, key, value], added


def exact(layout: TokenLayout, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> tuple[Tensor, Attention]:
    """In float64."""
    query, key, value = (x.double() for x in (query, key, value))
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    logits = logits if bias is None else logits + bias.double()
    attention = Attention.from_logits(LOG2_E * logits, layout, bias is not None)
    return logits.softmax(-1) @ value, attention


def by_kernel(layout: TokenLayout, tensors: list[Tensor], bias: Tensor | None) -> tuple[Tensor, Attention]:
    scale = LOG2_E / math.sqrt(tensors[0].shape[-1])
    return attend_fused(layout, *tensors, None if bias is None else LOG2_E * bias, scale)  # type: ignore[arg-type]


def errors(case: Case) -> dict[str, float]:
    """Largest differences to float64: of the vectors, statistics, maps, and entropies of all rows."""
    layout, tensors, bias = drawn(**case)
    (out, ours), (expected, theirs) = by_kernel(layout, tensors, bias), exact(layout, *tensors, bias)
    assert out.shape == expected.shape
    assert out.transpose(1, 2).is_contiguous()
    pairs = {name: (f(ours), f(theirs)) for name, f in STATISTICS.items() if layout.has_cls or "cls" not in name}
    pairs |= {f"map of {name}": (values, theirs.maps()[name]) for name, values in ours.maps().items()}
    pairs |= {"vectors": (out, expected), "entropy of all rows": (ours.patch_entropy, theirs.patch_entropy)}
    assert ours.rows.keys() == theirs.rows.keys()
    return {name: float((a.double() - b).abs().nan_to_num(torch.inf).max()) for name, (a, b) in pairs.items()}


@INTERPRETED
@pytest.mark.parametrize("name", CASES)
def test_all_sums_are_those_of_float64(name: str) -> None:
    """Logits of thousands are themselves rounded to a ten-thousandth in float32."""
    if name == "nothing of the first tile":
        assert tiles_of(True, 64, True, kernels.CAPABILITY).columns <= 33
    allowed = 1e-5 * max(1.0, CASES[name].get("sharpness", 1.0))
    wrong = {what: error for what, error in errors(CASES[name]).items() if error > allowed}
    assert not wrong


@INTERPRETED
@pytest.mark.parametrize("tiles", sorted({(c.tiles.rows, c.tiles.columns) for c in TILES} | {(16, 16)}), ids=str)
def test_all_tiles_give_the_same(tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tokens that fill one of them, and leave some."""
    monkeypatch.setattr(fused, "tiles_of", lambda *_: Tiles(*tiles, warps=4))
    n = max(tiles) + 22
    case = {"n_tokens": n, "heads": 1, "prefix": 3, "bias": (1, 1), "masked": 0.5}
    assert max(errors(case).values()) < 1e-5


def test_tiles_by_what_they_are_for() -> None:
    def chosen(width: int, capability: tuple[int, int], has_bias: bool = False) -> tuple[int, int]:
        tiles = tiles_of(False, width, has_bias, capability)
        assert tiles.warps * 16 == tiles.rows  # more would do the same again
        return tiles.rows, tiles.columns

    assert chosen(64, (8, 0)) == chosen(64, (9, 0)) == chosen(32, (10, 0)) == (64, 32)
    assert chosen(128, (8, 6)) == chosen(128, (9, 0), has_bias=True) == (128, 32)
    assert chosen(128, (9, 0)) == (64, 32)


@INTERPRETED
def test_masks_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `attend`, which chooses the kernel: masks of booleans, and scales of others."""
    monkeypatch.setattr(kernels, "apply_to", lambda _: True)
    layout, (query, key, value), _ = drawn(37)
    mask = torch.rand(1, 1, 37, 37, generator=torch.Generator().manual_seed(0)) < 0.7
    mask[..., 0] = True
    out, _ = attend(layout, query, key, value, mask, scale=0.3, memory={})
    torch.testing.assert_close(out, F.scaled_dot_product_attention(query, key, value, mask, scale=0.3))


@INTERPRETED
def test_a_row_that_sees_nothing_has_no_distribution() -> None:
    layout, tensors, bias = drawn(33, bias=(1, 1))
    assert bias is not None
    bias[..., 4, :] = -torch.inf
    out, attention = by_kernel(layout, tensors, bias)
    assert out[:, :, 4].isnan().all()
    assert attention.patch_entropy[:, :, 4].isnan().all()
    assert not out[:, :, 5].isnan().any()


@INTERPRETED
# [cls], a patch of a whole tile, and one of the rest.
@pytest.mark.parametrize(("token", "bias"), [(0, None), (20, (1, 1)), (35, None)])
def test_nan_is_not_hidden(token: int, bias: tuple[int, int] | None) -> None:
    """The store refuses it, and says that weights or input are broken."""
    layout, tensors, added = drawn(40, bias=bias)
    tensors[1][:, :, token, 0] = torch.nan
    out, attention = by_kernel(layout, tensors, added)
    sums = (attention.z, *([attention.patch_entropy] if token else [attention.to_cls]))
    for values in (out, *sums, *attention.maps().values()):
        assert values.isnan().any(-1).all()


@INTERPRETED
def test_no_images() -> None:
    layout, tensors, _ = drawn(20)
    out, attention = by_kernel(layout, [x[:0] for x in tensors], None)
    assert (out.shape, attention.z.shape) == ((0, 2, 20, 16), (0, 2, 20))


@INTERPRETED
@pytest.mark.parametrize("shape", [(2, 5, 24), (0, 3, 8)], ids=str)
def test_norms_are_those_of_float64(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a residual that is not contiguous, and statistics of norms alone are those of tokens."""
    monkeypatch.setattr(kernels, "apply_to", lambda _: True)
    generator = torch.Generator().manual_seed(0)
    residual = torch.randn(*shape[:2], 2 * shape[2], generator=generator)[..., ::2]
    branch = torch.randn(shape, generator=generator).half()
    norms = norms_of(residual, branch)[..., None]
    for ours, tokens in zip(norms, (residual, branch), strict=True):
        torch.testing.assert_close(ours, tokens.double().norm(dim=-1, keepdim=True).float(), rtol=1e-6, atol=0)
    for name in ("cls_norm_ratio", "patch_norm_ratio"):
        of_tokens = PER_BLOCK[name](residual.double(), branch.double(), TokenLayout(True, 1)).float()
        assert facts_of(name).of_norms
        torch.testing.assert_close(PER_BLOCK[name](*norms, TokenLayout(True, 1)), of_tokens, rtol=1e-6, atol=0)


@INTERPRETED
def test_an_encoder_reads_tokens_once_for_both_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, names = tiny_encoder(), ["cls_norm_ratio", "patch_norm_ratio"]
    images = torch.rand(2, *encoder.config["input_size"], generator=torch.Generator().manual_seed(0))
    expected = encoder(images, [0], names).statistics
    monkeypatch.setattr(kernels, "apply_to", lambda _: True)
    calls: list[torch.Size] = []
    monkeypatch.setattr("extract.encoders.encoded.norms_of", lambda x, y: (calls.append(x.shape), norms_of(x, y))[1])
    given = encoder(images, [0], names).statistics
    assert len(calls) == encoder.n_blocks
    for name in names:
        torch.testing.assert_close(given[name], expected[name], rtol=1e-5, atol=0)


def test_they_are_launched_where_their_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which with `--device cuda:1` is another."""
    launches = Launches(monkeypatch)
    monkeypatch.setattr("extract.attention.kernel.attention_kernel", launches)
    layout, tensors, _ = drawn(20)
    by_kernel(layout, tensors, None)
    monkeypatch.setattr("extract.attention.kernel.norms_kernel", launches)
    torch.ops.beyondcls.norms(tensors[0][0], tensors[0][0])
    assert [one is not None and one.shape for one in launches.guarded_by] == [tensors[0].shape, tensors[0].shape[1:]]


def test_what_it_is_not_for() -> None:
    q = torch.zeros(1, 1, 4, 64)
    assert applies_to(q, q, q)
    assert applies_to(q, q, q.bfloat16())
    wide = torch.zeros(1, 1, 4, 129)
    assert not applies_to(wide, wide, q)
    assert not applies_to(q, q, wide)
    assert not applies_to(q, q.half(), q)
    assert not applies_to(q.double(), q.double(), q)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Dtypes of values with which the kernel was asked for."""
    calls = []

    def counted(layout: TokenLayout, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Attention]:
        calls.append(value.dtype)
        return attend_fused(layout, query, key, value, *rest)

    monkeypatch.setattr(watch_file, "attend_fused", counted)
    return calls


def encoded(encoder: Encoder, device: str) -> Encoded:
    """All that can be had of two images in the last block."""
    images = torch.zeros(2, *encoder.config["input_size"], dtype=torch.uint8, device=device)
    last = encoder.n_blocks - 1
    return encoder(images, [last], encoder.statistics, [last], [last], pooled=True)


def of_each_architecture() -> list[str]:
    """The first entry of each: others that are made alike, and see images as large, are the same computation."""
    first: dict[tuple[Any, ...], str] = {}
    for name, entry in ENCODERS.items():
        arguments = {**entry.arguments, **PUBLISHED[name][0].smaller()[1]}
        first.setdefault((entry.make, entry.model, repr(sorted(arguments.items()))), name)
    return list(first.values())


def small(name: str) -> Encoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of many no name tells how they were trained
        return load_encoder(name, random_seed=0, arguments=PUBLISHED[name][0].smaller()[1])


@ON_A_FAKE_GPU
class TestEncodersOnADeviceThatIsNotThere:
    @pytest.mark.parametrize("name", of_each_architecture())
    def test_all_is_where_it_belongs(self, name: str, monkeypatch: pytest.MonkeyPatch, launched: list[Any]) -> None:
        encoder = small(name)
        kinds = encoder(torch.zeros(1, *encoder.config["input_size"]), [0]).patch[0].dtype
        with fake_cuda(monkeypatch) as mode:
            placed(encoder, mode)
            encoder.compute_dtype = "bfloat16"
            features = encoded(encoder, "cuda")
        parts = (features.patch, features.cls, features.registers, features.average, features.statistics, features.maps)
        tensors = [values for part in parts for values in part.values()]
        assert {(values.device.type, values.dtype) for values in tensors} == {("cuda", kinds)}
        assert features.statistics.keys() == set(encoder.statistics)
        assert launched == [torch.bfloat16] * (encoder.n_blocks if encoder.attends else 0)

    def test_statistics_are_computed_once_for_all_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A block adds one kernel, of norms: that of attention stands in the place of PyTorch's."""
        started = []
        for depth in (2, 4):
            encoder = tiny_encoder(depth=depth)
            with fake_cuda(monkeypatch) as mode:
                placed(encoder, mode)
                encoder.compute_dtype = "bfloat16"
                images = torch.zeros(2, *encoder.config["input_size"], dtype=torch.uint8, device="cuda")
                for statistics in ((), encoder.statistics):
                    with Started() as operations:
                        encoder(images, [depth - 1], statistics)
                    started.append(operations.count)
        assert started[3] - started[2] == started[1] - started[0] + 2

    def test_a_tensor_that_was_left_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encoder = tiny_encoder()
        with fake_cuda(monkeypatch) as mode:
            placed(encoder, mode)
            norm: Any = encoder.model.blocks[1].norm1  # type: ignore[index]
            norm.weight = torch.nn.Parameter(norm.weight.to("cpu"), requires_grad=False)
            with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
                encoded(encoder, "cuda")


@pytest.mark.gpu
@NEEDS_GPU
class TestOnAGpu:
    @pytest.mark.parametrize("name", CASES)
    def test_all_sums_are_those_of_float64(self, name: str) -> None:
        layout, tensors, bias = drawn(**CASES[name])
        out, attention = by_kernel(layout, [x.cuda() for x in tensors], None if bias is None else bias.cuda())
        expected, theirs = exact(layout, *tensors, bias)
        allowed = 1e-4 * max(1.0, CASES[name].get("sharpness", 1.0))
        torch.testing.assert_close(out.cpu().double(), expected, rtol=0, atol=allowed)
        torch.testing.assert_close(attention.patch_entropy.cpu().double(), theirs.patch_entropy, rtol=0, atol=allowed)

    @pytest.mark.parametrize(("amp", "allowed"), [("none", 1e-4), ("bf16", 0.03), ("fp16", 0.005)])
    @pytest.mark.parametrize("width", [64, 80])
    def test_an_encoder_gives_what_pytorch_gives(self, amp: str, allowed: float, width: int, launched: list[Any]) -> None:
        """All statistics and maps of random images; vectors as far as 16 bits allow."""
        encoder = tiny_encoder(img_size=224, patch_size=16, embed_dim=2 * width)
        sharpen(encoder.model, 4)
        encoder.model.cuda()
        encoder.run_with(amp=amp)
        images = torch.rand(3, 3, 224, 224, generator=torch.Generator().manual_seed(0)).cuda()
        ours = encoder(images, [1], encoder.statistics, [1])
        assert len(launched) == 2
        with patch.dict(os.environ, {kernels.SWITCH: "0"}):
            theirs = encoder(images, [1], encoder.statistics, [1])
        assert len(launched) == 2
        for name, values in theirs.statistics.items():
            torch.testing.assert_close(ours.statistics[name], values, rtol=allowed, atol=allowed)
        for name, values in theirs.maps.items():
            torch.testing.assert_close(ours.maps[name], values, rtol=allowed, atol=allowed)
        torch.testing.assert_close(ours.patch[1], theirs.patch[1], rtol=allowed, atol=allowed)
