"""Files as authors publish them, with random values, and what a plain computation makes of these."""

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
from tests.extract.encoders.published import Part, Published, Stages, Vit
from tests.extract.encoders.reference import Reference, State, offsets, stages, vit

REFERENCES: dict[type[Published], Callable[[Any, State, Tensor], Reference]] = {Vit: vit, Stages: stages}
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
    tensors, content = file.tensors(), Content()
    state = values(tensors) if state is None else state
    placed(content, file.at, state)
    if dropped:
        for twin in file.twins:
            placed(content, twin, values(tensors, seed))
        for name in file.dropped:
            for block in range(file.output[0]):
                placed(content, name.format(block), {"": _dropped(file, name, seed)})
    if "/" in file.at:  # what training scripts write beside tensors
        content |= {"epoch": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}
    return content


def _dropped(file: Published, name: str, seed: int) -> Tensor:
    if name.endswith(INDEX) and isinstance(file, Vit):
        return offsets(file.grid)
    return torch.randn(1, generator=torch.Generator().manual_seed(seed))


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


def double(state: Mapping[str, Tensor]) -> State:
    return {name: value.double() for name, value in state.items()}


def computed(file: Published, state: State, images: Tensor) -> Reference:
    """In float64."""
    return REFERENCES[type(file)](file, double(state), images.double())


def statistics_of(attention: Tensor, layout: TokenLayout) -> dict[str, Tensor]:
    """[B, H] of attention [B, H, N, N], by their definitions."""
    patches = slice(layout.n_prefix, None)
    among, itself = attention[..., patches, patches], attention.diagonal(dim1=-2, dim2=-1)
    statistics = {
        "patch_self": (itself[..., patches] / among.sum(-1)).mean(-1),
        "patch_patch_entropy": _entropy(among).mean(-1),
        "patch_self_raw": itself[..., patches].mean(-1),
    }
    if layout.has_cls:
        row = attention[..., 0, patches]
        statistics |= {
            "cls_self": itself[..., 0],
            "cls_patch_entropy": _entropy(row),
            "cls_self_adjusted": itself[..., 0] / row.sum(-1),
            "cls_to_patches": row.mean(-1),
            "patches_to_cls": attention[..., patches, 0].mean(-1),
        }
    return statistics


def _entropy(rows: Tensor) -> Tensor:
    """Eq. 5: a row over the patches alone, renormalised, natural logarithm."""
    p = rows / rows.sum(-1, keepdim=True)
    return -torch.xlogy(p, p).sum(-1)


def ratios_of(entering: Tensor, branch: Tensor, layout: TokenLayout) -> dict[str, Tensor]:
    """[B] of what enters a block and what its attention puts out [B, N, D]."""
    ratio = branch.square().sum(-1).sqrt() / entering.square().sum(-1).sqrt()
    of_patches = {"patch_norm_ratio": ratio[:, layout.n_prefix :].mean(-1)}
    return of_patches | ({"cls_norm_ratio": ratio[:, 0]} if layout.has_cls else {})


def assert_equal(encoder: Encoder, images: Tensor, expected: Reference, tolerance: float = 1e-4) -> None:
    """Tokens, maps and statistics of every block equal the reference's (in float64)."""
    layout, depth = encoder.layout, len(expected.tokens)
    assert encoder.n_blocks == depth
    encoded = encoder(images, range(depth), encoder.statistics, maps=range(depth))
    first = int(layout.has_cls)

    def close(given: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(given, expected.float(), rtol=tolerance, atol=tolerance)

    for block, tokens in enumerate(expected.tokens):
        close(encoded.patch[block], tokens[:, layout.n_prefix :])
        if layout.has_cls:
            close(encoded.cls[block], tokens[:, 0])
        if layout.n_registers:
            close(encoded.registers[block], tokens[:, first : layout.n_prefix])
    assert encoder.attends == bool(expected.attention)
    for block, attention in enumerate(expected.attention):
        assert attention.std() > 0.2 / attention.shape[-1], "nearly uniform attention would hide a mistake"
        ratios = ratios_of(expected.entering[block], expected.branch[block], layout)
        for name, value in (statistics_of(attention, layout) | ratios).items():
            of_block = encoded.statistics[name][:, block]
            torch.testing.assert_close(
                of_block, value.float(), rtol=tolerance, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )
        side = int((attention.shape[-1] - layout.n_prefix) ** 0.5)
        rows = {"centre": layout.n_prefix + side // 2 * (side + 1)} | ({"cls": 0} if layout.has_cls else {})
        for row, token in rows.items():
            close(encoded.maps[f"{row}/block{block}"], attention[:, :, token, layout.n_prefix :])
    assert len(encoded.maps) == (1 + first) * len(expected.attention)
