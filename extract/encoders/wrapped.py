"""Any module as an encoder: a pass over an image finds its blocks, attention, tokens and last norm, and proves them.

What is found follows from the record of that pass alone, not from names; but whether a token is [cls] shows in nothing else.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from extract.encoders.encoder import Encoder
from extract.encoders.pretrained import IMAGENET, checked_family
from extract.encoders.recording import Forward, ListedBlock, Record
from extract.transform import checked_transform, input_sides
from store import BeyondClsError
from store.errors import BeyondClsWarning
from store.format.pretraining import UNKNOWN, Pretraining

CLOSE = 1e-4  # of the largest value: what other orders of float32 sums amount to
CLS_NAMES = ("cls", "class")  # parts of the name of the parameter that [cls] starts from


class Wrapped(nn.Module):
    """A module with the attributes that an `Encoder` expects of its model, among them its blocks and last norm.

    Args:
        seen: a pass over an image.
        blocks: paths of the modules whose outputs are tokens [B, N, D], in the order in which they run.
        norm: path of the last norm, applied to the last block's tokens; empty if there is none.
        facts: further attributes.
    """

    blocks: list[nn.Module | ListedBlock]
    norm: nn.Module | None
    run: Forward

    def __init__(self, seen: Record, blocks: Sequence[str], norm: str, **facts: Any):
        super().__init__()
        self.model = seen.model
        # Beside torch's registry of submodules, so that no tensor gets a second name.
        modules = {**seen.modules, **seen.listed}
        self.__dict__.update(facts, run=seen.forward, blocks=[modules[path] for path in blocks], norm=modules.get(norm))

    def forward_features(self, images: Tensor) -> Tensor:
        """The last block's tokens after the last norm, [B, N, D]."""
        seen: list[Tensor] = []
        with self.blocks[-1].register_forward_hook(lambda _m, _i, out: seen.append(out if isinstance(out, Tensor) else out[0])):
            self.run(self.model, images)
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
    cut: str | None = None,
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
        mean, std, crop_pct, crop_mode, interpolation, scale, orientation, cut: as for `load_encoder`; ImageNet's by default.
        block: whose tokens are stored by default.
        family: how it was trained, one of "masked image modelling", "joint embedding", "labels", "untrained".
        architecture: plain values that tell it from other models with the same weights; part of the key. By default the class.

    Raises:
        BeyondClsError: it does not run on images, has no blocks or no plain grid of patches, or what was found does not give
            its own output.

    Warns:
        BeyondClsWarning: its attention is not seen; or mean and std are assumed.
    """
    name = name or type(model).__name__
    checked_family(family)
    model.eval().requires_grad_(False)
    sides = _image_size(model) if input_size is None else input_sides(input_size)
    patch = _patch_side(model) if patch_size is None else input_sides(patch_size)
    if patch is None or sides[0] % patch[0] or sides[1] % patch[1]:
        raise BeyondClsError(
            f"the patches of {name} were not found (patch_size {patch}, images of {sides[0]} x {sides[1]} pixels): no "
            "convolution of images whose stride is its size and divides theirs; give patch_size and input_size"
        )
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    image = torch.randn(1, 3, *sides, generator=torch.Generator().manual_seed(0)).to(device)
    seen = Record(model, forward or (lambda model, images: model(images)), image)
    paths = _find_blocks(seen) if blocks is None else _named_blocks(seen, blocks)
    grid = sides[0] // patch[0], sides[1] // patch[1]
    n_prefix = _find_prefix(seen, paths, grid)
    tokens = seen.out(paths[-1])
    assert tokens is not None
    branches, hidden = _find_attention(seen, paths)
    last_norm = _find_norm(seen, paths[-1], tokens) if norm is None else norm
    if last_norm and last_norm not in seen.modules:
        raise BeyondClsError(f'{name} has no module {last_norm!r}; give the path of its last norm, or norm="" for none')
    is_cls = n_prefix > 0 and (_find_cls(model, tokens.shape[-1], n_prefix) if has_cls is None else has_cls)
    options = {"mean": mean, "std": std, "crop_pct": crop_pct, "crop_mode": crop_mode, "interpolation": interpolation}
    transform = checked_transform(options | {"scale": scale, "orientation": orientation, "cut": cut}) | {
        "input_size": (3, *sides)
    }
    encoder = Encoder(
        name,
        Wrapped(
            seen,
            paths,
            last_norm,
            branches=[seen.modules.get(path) for path in branches] or [None] * len(paths),
            attends=bool(branches),
            num_prefix_tokens=n_prefix,
            cls_token=True if is_cls else None,
            patch_embed=SimpleNamespace(img_size=sides, patch_size=patch),
            pretrained_cfg=dict(IMAGENET),
        ),
        {"model": f"{type(model).__module__}.{type(model).__qualname__}", **(architecture or {})},
        transform,
        block,
        pretraining=Pretraining(family) if family else UNKNOWN,
    )
    _check_outputs(encoder, seen, paths, tokens, is_found=blocks is None and norm is None)
    notes = [
        f"its last norm, a {type(seen.modules[last_norm]).__name__}, is none that a feature set holds (LayerNorm): heads read "
        "tokens before it"
        if last_norm and not encoder.norm()[0]
        else "",
        f"no attention statistics and no maps: {hidden}" if hidden else "",
        f"its images are normalised as ImageNet's (mean {IMAGENET['mean']}, std {IMAGENET['std']}); give mean and std, if it "
        "was trained with others"
        if mean is None or std is None
        else "",
    ]
    for note in filter(None, notes):
        warnings.warn(f"{name}: {note}", BeyondClsWarning, stacklevel=2)
    return encoder


def _image_size(model: nn.Module) -> tuple[int, int]:
    """Height and width of images, as the model or its `config` says; 224 if neither does."""
    holders = (model, getattr(model, "config", None), getattr(getattr(model, "config", None), "vision_config", None))
    for holder in (*holders, getattr(model, "patch_embed", None)):
        for name in ("image_size", "img_size"):
            size = getattr(holder, name, None)
            if isinstance(size, int) and size > 1:
                return size, size
            if isinstance(size, Sequence) and len(size) == 2 and all(isinstance(n, int) for n in size):
                return int(size[0]), int(size[1])
    return 224, 224


def _patch_side(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of a patch in pixels, of the first convolution of images whose stride is its size."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            stride = (int(module.stride[0]), int(module.stride[1]))
            return stride if stride == tuple(module.kernel_size) and math.prod(stride) > 1 else None
    return None


def _find_blocks(seen: Record) -> tuple[str, ...]:
    """Paths of the blocks: the modules of one list that all put out as many tokens of one width, each once.

    Of several such lists that in which attention is computed; then the outermost and longest.
    """
    found: list[tuple[int, int, int, tuple[str, ...]]] = []
    for path, module in seen.model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        children = [f"{path}.{name}".lstrip(".") for name, _ in module.named_children()]
        outs = [seen.out(child) for child in children]
        shapes = {tuple(x.shape) for child in children for x in (seen.out(child), seen.taken.get(child)) if x is not None}
        if len(children) < 1 or None in outs or len(shapes) != 1 or len(next(iter(shapes))) != 3:
            continue
        n_attended = sum(any(child in stack for stack in seen.attended) for child in children)
        found.append((n_attended, -path.count("."), len(children), tuple(children)))
    if not found or (max(found)[0] == 0 and len(seen.attended) > 1):  # a pooling attends once, blocks elsewhere more often
        raise BeyondClsError(
            f"no blocks were found in {seen.kind}: no list of modules that each put out tokens [B, N, D] of one "
            f'number and width; give blocks="path.to.the.list", one of {_format_lists(seen)}'
        )
    paths = max(found)[-1]
    kind, above = type(seen.modules[paths[0]]), paths[0].rpartition(".")[0]
    further = {"": seen.model, **seen.modules}
    if isinstance(further[above], nn.ModuleList) and isinstance(further[above.rpartition(".")[0]], nn.ModuleList):
        raise BeyondClsError(
            f"blocks of {seen.kind} seem to be lists ({above}, …) whose parts the model calls one by one, where "
            "attention is not seen; make each a module that puts out its tokens, with its residual sums"
        )
    if others := {path for stack in seen.attended for path in stack if type(further[path]) is kind} - set(paths):
        raise BeyondClsError(
            f"{seen.kind} has further blocks of the kind {kind.__name__} ({', '.join(sorted(others)[:3])}, …), "
            "expected all in one list, with as many tokens; models that merge patches between stages have no one grid of them"
        )
    return paths


def _named_blocks(seen: Record, paths: str | Sequence[str]) -> tuple[str, ...]:
    """Paths of the blocks that a user names: a list of modules, or each of them."""
    if isinstance(paths, str):
        if paths not in seen.modules:
            raise BeyondClsError(f"{seen.kind} has no module {paths!r}; its lists of modules: {_format_lists(seen)}")
        paths = [f"{paths}.{name}" for name, _ in seen.modules[paths].named_children()]
    for path in paths:
        out = seen.out(path)
        if out is None or out.ndim != 3:
            what = "ran not once" if out is None else f"puts out {list(out.shape)}"
            raise BeyondClsError(f"{path!r} is no block of {seen.kind}: it {what}, expected tokens [B, N, D]")
    if not paths:
        raise BeyondClsError(f"blocks names no module of {seen.kind}; its lists of modules: {_format_lists(seen)}")
    return tuple(paths)


def _format_lists(seen: Record) -> str:
    names = [name for name, module in seen.modules.items() if isinstance(module, nn.ModuleList | nn.Sequential)]
    return ", ".join(names[:8]) or "none"


def _find_attention(seen: Record, blocks: Sequence[str]) -> tuple[list[str], str]:
    """Of each block the path of its attention's branch; none, and why, if attention cannot be seen."""
    branches = []
    for block in blocks:
        stacks, tokens = [stack for stack in seen.attended if block in stack], seen.out(block)
        if len(stacks) != 1:
            return [], (
                f"block {block} computes attention {len(stacks)} times where it can be seen (by scaled_dot_product_attention, "
                "nn.MultiheadAttention, or a softmax over rows whose result is multiplied with values), expected once"
            )
        assert tokens is not None
        outs = {path: seen.out(path) for path in stacks[0][stacks[0].index(block) + 1 :]}
        branches.append(next((path for path, out in outs.items() if out is not None and out.shape == tokens.shape), ""))
    return branches, ""


def _find_norm(seen: Record, last_block: str, tokens: Float[Tensor, "1 N D"]) -> str:
    """Path of the norm that the last block's tokens, or its [cls], go through next; empty if there is none."""
    behind = seen.order[seen.order.index(last_block) + 1 :]
    norms = (path for path in behind if "norm" in type(seen.modules[path]).__name__.lower())
    return next((path for path in norms if _is_of_tokens(seen.taken[path], tokens)), "")


def _is_of_tokens(values: Tensor, tokens: Float[Tensor, "1 N D"]) -> bool:
    """Whether values are tokens, the first of them, or their average."""
    same = [tokens, tokens[:, :1], tokens[:, 0], tokens.mean(1)]
    return any(values.shape == one.shape and torch.allclose(values, one, rtol=1e-4, atol=1e-4) for one in same)


def _find_prefix(seen: Record, blocks: Sequence[str], grid: tuple[int, int]) -> int:
    """How many tokens come before the patches, from what changes when the pixels of one patch do."""

    def tokens_of(image: Tensor) -> Tensor:
        return Record(seen.model, seen.forward, image).taken[blocks[0]]

    image, (rows, columns) = seen.images, grid
    high, wide = image.shape[2] // rows, image.shape[3] // columns
    first = tokens_of(image)
    if not torch.equal(first, tokens_of(image)):
        raise BeyondClsError(
            f"{seen.kind} gives other tokens in each pass over one image: it masks or drops at random, expected the "
            "same; give forward=lambda model, images: …, which runs it without"
        )
    n_prefix = first.shape[1] - rows * columns
    if n_prefix < 0:
        raise BeyondClsError(
            f"{seen.kind} has {first.shape[1]} tokens of an image, expected {rows} x {columns} patches or more; "
            "give patch_size, and the input_size that it takes"
        )
    for row, column in {(0, 0), (rows // 2, columns - 1), (rows - 1, columns // 3)}:
        changed = image.clone()
        changed[:, :, row * high : (row + 1) * high, column * wide : (column + 1) * wide] *= -1
        moved = (tokens_of(changed) - first).float().norm(dim=-1)[0]
        if int(moved.argmax()) != n_prefix + row * columns + column:
            raise BeyondClsError(
                f"pixels of the patch in row {row}, column {column} change token {int(moved.argmax())} of {len(moved)} most, "
                f"expected token {n_prefix + row * columns + column}: {seen.kind} must have its {rows} x {columns} "
                "patches last and row by row; give patch_size, or forward=…, if this is another grid"
            )
    return n_prefix


def _find_cls(model: nn.Module, width: int, n_prefix: int) -> bool:
    """Whether the first prefix token is [cls], by the name of the parameter that it starts from."""
    for name, parameter in model.named_parameters():
        own = name.rpartition(".")[2].lower()
        if any(part in own for part in CLS_NAMES) and parameter.numel() == width:
            return True
    raise BeyondClsError(
        f"{type(model).__name__} has {n_prefix} tokens before its patches, and no parameter named like [cls]; give "
        "has_cls=True if the first is [cls], or has_cls=False if all are registers"
    )


def _check_outputs(encoder: Encoder, seen: Record, blocks: Sequence[str], own: Tensor, is_found: bool) -> None:
    """Compare what the encoder gives with what the model itself does: `own` tokens; its own output, where all was found."""
    last = encoder.n_blocks - 1
    encoded = encoder(seen.images, [last], encoder.statistics)
    prefix = [encoded.cls[last][:, None]] if encoder.layout.has_cls else []
    prefix += [encoded.registers[last]] if last in encoded.registers else []
    _check_same(encoder.name, "tokens of the last block", torch.cat([*prefix, encoded.patch[last]], 1), own)
    assert isinstance(encoder.model, Wrapped)
    normalised = encoder.model.forward_features(seen.images)
    known = [*(out for block in blocks if (out := seen.out(block)) is not None), normalised]  # which a model may put out, too
    for out in tree_leaves(seen.output) if is_found else ():
        if isinstance(out, Tensor) and out.shape == own.shape and not any(_is_of_tokens(out, x) for x in known):
            _check_same(encoder.name, "normalised tokens", normalised, out)
    for block, row in enumerate(encoded.statistics.get("patch_self", own.new_zeros(0, 0)).unbind(1)):
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
