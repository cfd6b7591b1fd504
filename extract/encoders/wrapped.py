"""Any module as an encoder: a pass over an image finds its blocks, attention, tokens and last norm, and proves them."""

import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from extract.encoders.encoder import Encoder
from extract.encoders.finding import (
    Parts,
    blocks_at,
    find_attention,
    find_blocks,
    find_cls,
    find_norm,
    find_prefix,
    is_of_tokens,
    patch_side,
    record,
    side_of,
)
from extract.encoders.lists_of_parts import ListedBlock
from extract.encoders.pretrained import IMAGENET
from extract.encoders.recording import Bounds, Forward, Record
from extract.transform import checked_transform, input_sides
from store import BeyondClsError
from store.errors import BeyondClsWarning, unknown
from store.format.pretraining import FAMILIES, UNKNOWN, Pretraining

CLOSE = 1e-4  # of the largest value: what other orders of float32 sums amount to


class Wrapped(nn.Module):
    """A module with the attributes that an `Encoder` expects of its model."""

    blocks: list[nn.Module | ListedBlock]
    norm: nn.Module | None
    run: Forward

    def __init__(
        self,
        model: nn.Module,
        parts: Parts,
        forward: Forward,
        input_size: tuple[int, int],
        bounds: Mapping[str, Bounds],  # of blocks that are lists of parts
    ):
        super().__init__()
        self.model = model
        modules = {path: module for path, module in model.named_modules() if path}
        rows, columns = parts.grid
        # Beside torch's registry of submodules, so that no tensor gets a second name.
        self.__dict__.update(
            run=forward,
            blocks=[ListedBlock(bounds[path], modules) if path in bounds else modules[path] for path in parts.blocks],
            branches=[modules.get(path) for path in parts.branches] or [None] * len(parts.blocks),
            norm=modules.get(parts.norm),
            attends=not parts.hidden,
            num_prefix_tokens=parts.n_prefix,
            cls_token=True if parts.has_cls else None,
            patch_embed=SimpleNamespace(img_size=input_size, patch_size=(input_size[0] // rows, input_size[1] // columns)),
            pretrained_cfg=dict(IMAGENET),
        )

    def forward_features(self, images: Tensor) -> Tensor:
        """The last block's tokens after the last norm, [B, N, D]."""
        seen: list[Tensor] = []
        hook = self.blocks[-1].register_forward_hook(
            lambda _m, _i, out: seen.append(out if isinstance(out, Tensor) else out[0])
        )
        try:
            self.run(self.model, images)
        finally:
            hook.remove()
        # By `forward`, past the hooks on it, where the last block may end.
        return seen[0] if self.norm is None else self.norm.forward(seen[0])


def wrap(
    model: nn.Module,
    name: str = "",
    *,
    forward: Forward | None = None,
    blocks: str | Sequence[str] | None = None,
    norm: str | None = None,
    has_cls: bool | None = None,
    patch_size: int | Sequence[int] | None = None,
    input_size: int | str | Sequence[int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    interpolation: str | None = None,
    scale: Sequence[float] | None = None,
    orientation: str | None = None,
    block: int = -1,
    family: str | None = None,
    architecture: Mapping[str, Any] | None = None,
) -> Encoder:
    """A frozen encoder of any ViT: what features are read from is found by passes over an image of noise, which prove it, too.

    Blocks are the modules of one list that all put out tokens [B, N, D], or lists of parts that the model calls one by one.
    Attention is seen in `scaled_dot_product_attention`, in `nn.MultiheadAttention`, and in a softmax over rows whose result is
    multiplied with values; where it is not, a warning says so, and tokens remain. That patches come last and row by row is
    checked by changing one patch of the image; that nothing was missed, by comparing with the model's own output.

    Args:
        model: in any mode, on any device; it is frozen.
        name: as users know it; by default that of its class.
        forward: runs it on images [B, 3, H, W]; `model(images)` by default.
        blocks: path of the list of blocks, or the paths of all; found by default.
        norm: path of the last norm, or "" for none; found by default.
        has_cls: whether the first token is [cls]; by default by the name of the parameter that it starts from.
        patch_size: height and width of a patch, pixels; by default of the first convolution.
        input_size: side of the images, pixels, or height and width; by default as the model or its `config` says.
        mean, std, crop_pct, crop_mode, interpolation, scale, orientation: as for `load_encoder`; ImageNet's by default.
        block: whose tokens are stored by default.
        family: how it was trained, one of "masked image modelling", "joint embedding", "labels", "untrained".
        architecture: plain values that tell it from other models with the same weights; part of the key. By default the class.

    Raises:
        BeyondClsError: it does not run on images, has no blocks or no plain grid of patches, or what was found does not give
            its own output.

    Warns:
        BeyondClsWarning: its attention is not seen; or mean and std are assumed.
    """
    name, run = name or type(model).__name__, forward or _call
    if family is not None and family not in FAMILIES:
        raise BeyondClsError(unknown("family", family, FAMILIES))
    model.eval().requires_grad_(False)
    sides = side_of(model) if input_size is None else input_sides(input_size)
    patch = patch_side(model) if patch_size is None else input_sides(patch_size)
    if patch is None or sides[0] % patch[0] or sides[1] % patch[1]:
        raise BeyondClsError(
            f"the patches of {name} were not found (patch_size {patch}, images of {sides[0]} x {sides[1]} pixels): no "
            "convolution of images whose stride is its size and divides theirs; give patch_size and input_size"
        )
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    image = torch.randn(1, 3, *sides, generator=torch.Generator().manual_seed(0)).to(device)
    seen = record(model, run, image)
    paths = find_blocks(model, seen) if blocks is None else blocks_at(model, blocks, seen)
    grid = sides[0] // patch[0], sides[1] // patch[1]
    n_prefix = find_prefix(model, run, image, paths, grid)
    tokens = seen.out(paths[-1])
    assert tokens is not None
    branches, hidden = find_attention(paths, seen)
    last_norm = find_norm(model, paths, seen) if norm is None else norm
    if last_norm and last_norm not in dict(model.named_modules()):
        raise BeyondClsError(f'{name} has no module {last_norm!r}; give the path of its last norm, or norm="" for none')
    is_cls = find_cls(model, tokens.shape[-1], n_prefix) if has_cls is None else has_cls and n_prefix > 0
    parts = Parts(paths, branches, hidden, last_norm, n_prefix, is_cls, grid)
    wrapped = Wrapped(model, parts, run, sides, seen.bounds)
    cut = {"mean": mean, "std": std, "crop_pct": crop_pct, "crop_mode": crop_mode, "interpolation": interpolation}
    transform = checked_transform(cut | {"scale": scale, "orientation": orientation})
    described = {"model": f"{type(model).__module__}.{type(model).__qualname__}", **(architecture or {})}
    transform["input_size"] = (3, *sides)
    encoder = Encoder(name, wrapped, described, transform, block, pretraining=Pretraining(family) if family else UNKNOWN)
    _prove(encoder, image, seen, parts, is_found=blocks is None and norm is None)
    if last_norm and not encoder.norm()[0]:
        kind = type(dict(model.named_modules())[last_norm]).__name__
        warnings.warn(
            f"{name}: its last norm, a {kind}, is none that a feature set holds (LayerNorm): heads read tokens before it",
            BeyondClsWarning,
            stacklevel=2,
        )
    if hidden:
        warnings.warn(f"{name}: no attention statistics and no maps: {hidden}", BeyondClsWarning, stacklevel=2)
    if mean is None or std is None:
        warnings.warn(
            f"{name}: its images are normalised as ImageNet's (mean {IMAGENET['mean']}, std {IMAGENET['std']}); give mean and "
            "std, if it was trained with others",
            BeyondClsWarning,
            stacklevel=2,
        )
    return encoder


def _call(model: nn.Module, images: Tensor) -> Any:
    return model(images)


def _prove(encoder: Encoder, image: Tensor, seen: Record, parts: Parts, is_found: bool) -> None:
    """Compare what the encoder gives with what the model itself does; with its own output, where all was found.

    Raises:
        BeyondClsError: they differ.
    """
    encoded = encoder(image, [encoder.n_blocks - 1], encoder.statistics)
    last = encoder.n_blocks - 1
    prefix = [encoded.cls[last][:, None]] if parts.has_cls else []
    prefix += [encoded.registers[last]] if last in encoded.registers else []
    tokens = torch.cat([*prefix, encoded.patch[last]], 1)
    own = seen.out(parts.blocks[-1])
    assert own is not None
    _check_same(encoder.name, "tokens of the last block", tokens, own)
    assert isinstance(encoder.model, Wrapped)
    normalised = encoder.model.forward_features(image)
    of_blocks = [out for block in parts.blocks if (out := seen.out(block)) is not None]  # which a model may put out, too
    for out in tree_leaves(seen.output) if is_found else ():
        if (
            isinstance(out, Tensor)
            and out.shape == own.shape
            and not any(is_of_tokens(out, x) for x in (*of_blocks, normalised))
        ):
            _check_same(encoder.name, "normalised tokens", normalised, out)
    for block, row in enumerate(encoded.statistics.get("patch_self", tokens.new_zeros(0, 0)).unbind(1)):
        if not bool(row.isfinite().all()):
            raise BeyondClsError(f"rows of attention of block {block} of {encoder.name} do not sum to 1")


def _check_same(name: str, what: str, ours: Tensor, theirs: Tensor) -> None:
    theirs = theirs.float()
    distance = (ours - theirs).abs().max().item()
    if ours.shape != theirs.shape or not distance <= CLOSE * max(1.0, theirs.abs().max().item()):
        raise BeyondClsError(
            f"{what} of {name} as they were read differ from the model's own by {distance:.2g}; its attention is not what it "
            "seems; give its blocks by paths, and report the model"
        )
