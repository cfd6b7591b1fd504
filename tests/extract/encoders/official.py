"""Files as authors publish them, with random values; what a plain computation makes of these; models of timm as they are."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from extract.attention import TokenLayout
from extract.encoders import ENCODERS, Encoder, Pretrained, load_encoder
from extract.encoders.weights import CLASSIFIER
from store import BeyondClsError
from store.errors import BeyondClsWarning
from tests.extract.encoders.published import Part, Published, Vit
from tests.extract.encoders.reference import Reference, State, offsets, stages, vit
from tests.extract.tiny import sharpen

INDEX = "relative_position_index"  # BEiT's buffer beside its table, whose values are checked
Content = dict[str, Any]


def values_of(tensors: Mapping[str, Part], seed: int = 0) -> State:
    """Attention is far from uniform, and tokens enter the first block so small that the eps of its norm shows."""
    generator = torch.Generator().manual_seed(seed)

    def values(role: str, shape: tuple[int, ...]) -> Tensor:
        x, (layer, _, kind) = torch.randn(shape, generator=generator), role.partition(".")
        if role == "mask":  # none of keys has a bias
            return (x > 0).float() * torch.tensor([1.0, 0, 1]).repeat_interleave(shape[0] // 3)
        if role == "periods":
            return 1 + 10 * x.abs()
        if role == "frequencies":
            return 9 * x
        if layer.startswith("norm") and kind == "weight":
            return 1 + 0.2 * x
        if layer in ("cls", "registers", "positions") or role == "patches.bias":
            return 0.003 * x
        if len(shape) < 2 or layer in ("table", "tables"):
            return 0.3 * x
        return x * {"patches": 0.01, "qkv": 2, "q": 2, "k": 2}.get(layer, 1) / x[0].numel() ** 0.5

    return {name: values(*part) for name, part in tensors.items()}


def zeros_of(tensors: Mapping[str, Part], _: int = 0) -> State:
    """Tensors that take no memory, and that can be computed with."""
    return {name: torch.zeros(()).expand(part.shape) for name, part in tensors.items()}


def written(
    file: Published, state: State | None = None, dropped: bool = True, seed: int = 7, values: Callable[..., State] = values_of
) -> Content:
    """Content of a file, with `state` as the encoder's tensors.

    Args:
        dropped: with tensors that do not belong to the encoder.
        seed: of the values of that.
        values: that tensors have.
    """
    content = placed({}, file.at, values(file.tensors()) if state is None else state)
    for twin in file.twins if dropped else ():
        placed(content, twin, values(file.tensors(), seed))
    for name in file.dropped if dropped else ():
        is_index = name.endswith(INDEX) and isinstance(file, Vit)
        for block in range(file.output[0]):
            value = offsets(file.grid) if is_index else torch.randn(1, generator=torch.Generator().manual_seed(seed))
            placed(content, name.format(block), {"": value})
    if "/" in file.at:  # what training scripts write beside tensors
        content |= {"epoch": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}
    return content


def placed(content: Content, place: str, tensors: Mapping[str, Tensor]) -> Content:
    """`content`, with tensors at a place: keys of dictionaries, "/" behind each, and what names begin with."""
    *keys, prefix = place.split("/")
    inner = content
    for key in keys:
        inner = inner.setdefault(key, {})
    inner.update({f"{prefix}{name}": tensor for name, tensor in tensors.items()})
    return content


def loaded(name: str, content: Any, folder: Path, **arguments: Any) -> Encoder:
    """The encoder that a registered name makes of a checkpoint with this content."""
    torch.save(content, folder / "checkpoint.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BeyondClsWarning)  # of many no name tells how they were trained
        return load_encoder(name, checkpoint=folder / "checkpoint.pth", arguments=arguments)


def kept(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Names and shapes, but for a classifier."""
    return {name: tuple(value.shape) for name, value in state.items() if name not in CLASSIFIER}


def made(entry: Pretrained, **arguments: Any) -> nn.Module:
    """The architecture of an entry, made once; no memory is taken."""
    return _made(entry.make, entry.model, tuple({**entry.arguments, **arguments}.items()))


@cache
def _made(make: Callable[..., nn.Module], model: str, arguments: tuple[tuple[str, Any], ...]) -> nn.Module:
    with torch.device("meta"):
        return make(model, **dict(arguments))


def takes(name: str, content: Content, **arguments: Any) -> bool:
    """Whether a registered name loads such a file."""
    try:
        state, decided = ENCODERS[name].read(content)
    except BeyondClsError:
        return False
    return kept(state) == kept(made(ENCODERS[name], **arguments, **decided).state_dict())


def random_images(side: int = 224) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def computed(file: Published, state: State, images: Tensor) -> Reference:
    """In float64."""
    compute: Callable[..., Reference] = vit if isinstance(file, Vit) else stages
    return compute(file, {name: value.double() for name, value in state.items()}, images.double())


def statistics_of(attention: Tensor, layout: TokenLayout) -> dict[str, Tensor]:
    """[B, H] of attention [B, H, N, N], by their definitions."""
    patches = slice(layout.n_prefix, None)
    among, itself, row = attention[..., patches, patches], attention.diagonal(dim1=-2, dim2=-1), attention[..., 0, patches]
    entropies = torch.special.entr(attention[..., patches] / attention[..., patches].sum(-1, keepdim=True)).sum(-1)  # Eq. 5
    statistics = {
        "patch_self": (itself[..., patches] / among.sum(-1)).mean(-1),
        "patch_patch_entropy": entropies[..., patches].mean(-1),
        "patch_self_raw": itself[..., patches].mean(-1),
    }
    of_cls = {
        "cls_self": itself[..., 0],
        "cls_patch_entropy": entropies[..., 0],
        "cls_self_adjusted": itself[..., 0] / row.sum(-1),
        "cls_to_patches": row.mean(-1),
        "patches_to_cls": attention[..., patches, 0].mean(-1),
    }
    return statistics | (of_cls if layout.has_cls else {})


def maps_of(attention: Tensor, layout: TokenLayout) -> dict[str, Tensor]:
    """[B, H, T] of attention [B, H, N, N]: the row of [cls], if there is one, and of the patch right below the middle."""
    side = int((attention.shape[-1] - layout.n_prefix) ** 0.5)
    rows = {"centre": layout.n_prefix + side // 2 * (side + 1)} | ({"cls": 0} if layout.has_cls else {})
    return {row: attention[:, :, token, layout.n_prefix :] for row, token in rows.items()}


def assert_equal(encoder: Encoder, images: Tensor, expected: Reference, tolerance: float = 1e-4) -> None:
    """Tokens, maps and statistics of every block equal the reference's (in float64)."""
    layout, depth = encoder.layout, len(expected.tokens)
    assert encoder.n_blocks == depth
    assert encoder.attends == bool(expected.attention)
    encoded = encoder(images, range(depth), encoder.statistics, maps=range(depth))
    first = int(layout.has_cls)

    def close(given: Tensor, expected: Tensor, name: str = "", atol: float = tolerance) -> None:
        torch.testing.assert_close(given, expected.float(), rtol=tolerance, atol=atol, msg=lambda text: f"{name}: {text}")

    for block, tokens in enumerate(expected.tokens):
        close(encoded.patch[block], tokens[:, layout.n_prefix :])
        if layout.has_cls:
            close(encoded.cls[block], tokens[:, 0])
        if layout.n_registers:
            close(encoded.registers[block], tokens[:, first : layout.n_prefix])
    for block, attention in enumerate(expected.attention):
        assert attention.std() > 0.2 / attention.shape[-1], "nearly uniform attention would hide a mistake"
        ratio = expected.branch[block].norm(dim=-1) / expected.entering[block].norm(dim=-1)
        statistics = statistics_of(attention, layout) | {"patch_norm_ratio": ratio[:, layout.n_prefix :].mean(-1)}
        for name, values in (statistics | ({"cls_norm_ratio": ratio[:, 0]} if layout.has_cls else {})).items():
            close(encoded.statistics[name][:, block], values, name, atol=1e-6)
        for name, values in maps_of(attention, layout).items():
            close(encoded.maps[f"{name}/block{block}"], values, name)
    assert len(encoded.maps) == (1 + first) * len(expected.attention)


def assert_is_the_model(encoder: Encoder) -> None:
    """Tokens of a tiny model of timm are what its `forward_features` gives with fused attention, behind the norm; attention is
    what its own unfused one, softmax(q k / sqrt(d)), passes through `attn_drop`.
    """
    sharpen(encoder.model, 8)
    images, layout = torch.randn(3, 3, 32, 32), encoder.layout
    encoded = encoder(images, [1], encoder.statistics, maps=[0, 1])
    tokens = [encoded.cls[1][:, None]] if layout.has_cls else []
    tokens += [encoded.registers[1]] if layout.n_registers else []
    expected: list[Tensor] = []
    with torch.inference_mode():
        ours = encoder.model.norm(torch.cat([*tokens, encoded.patch[1]], 1))
        torch.testing.assert_close(ours, encoder.model.forward_features(images), rtol=0, atol=1e-5)
        for block in encoder.model.blocks:
            block.attn.fused_attn = False
            block.attn.attn_drop.register_forward_hook(lambda _module, _input, out: expected.append(out))
        encoder.model.forward_features(images)
    assert len(expected) == 2
    for block, attention in enumerate(expected):
        assert attention.shape == (3, 2, layout.n_prefix + 16, layout.n_prefix + 16)
        assert attention.std() > 0.01, "uniform attention would hide a mistake"
        statistics = {name: encoded.statistics[name][:, block] for name in statistics_of(attention, layout)}
        torch.testing.assert_close(statistics, statistics_of(attention, layout), rtol=1e-5, atol=1e-5)
        maps = {name: encoded.maps[f"{name}/block{block}"] for name in maps_of(attention, layout)}
        torch.testing.assert_close(maps, maps_of(attention, layout), rtol=0, atol=1e-5)
