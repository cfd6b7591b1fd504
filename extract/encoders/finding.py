"""Finding in a model what features are read from: its blocks, where they attend, its last norm and its tokens.

A pass over one image is recorded: which module ran within which, what it put out, and when attention was computed. What is
found follows from that record alone, not from names; but whether a token is [cls] shows in nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extract.encoders.lists_of_parts import join_parts
from extract.encoders.recording import Forward, Record, record_modules
from store import BeyondClsError

CLS_NAMES = ("cls", "class")  # parts of the name of the parameter that [cls] starts from


def record(model: nn.Module, forward: Forward, images: Tensor) -> Record:
    """Record a pass.

    Raises:
        BeyondClsError: the model does not run on the images.
    """
    seen = record_modules(model, forward, images)
    join_parts(model, seen)
    return seen


@dataclass(frozen=True)
class Parts:
    """What features are read from.

    Attributes:
        blocks: paths of the modules whose outputs are tokens [B, N, D], in the order in which they run.
        branches: of each block, the path of the module that gives what its attention adds; empty if there is none.
        hidden: why attention cannot be seen; empty where each block computes it once, in sight.
        norm: path of the last norm, applied to the last block's tokens; empty if there is none.
        n_prefix: tokens in front of the patches.
        has_cls: whether the first of them is [cls].
        grid: rows and columns of patches.
    """

    blocks: tuple[str, ...]
    branches: tuple[str, ...]
    hidden: str
    norm: str
    n_prefix: int
    has_cls: bool
    grid: tuple[int, int]


def find_blocks(model: nn.Module, seen: Record) -> tuple[str, ...]:
    """Paths of the blocks: the modules of one list that all put out as many tokens of one width, each once.

    Of several such lists that in which attention is computed; then the outermost and longest.

    Raises:
        BeyondClsError: there is none.
    """
    found: list[tuple[int, int, int, tuple[str, ...]]] = []
    for path, module in model.named_modules():
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
            f"no blocks were found in {type(model).__name__}: no list of modules that each put out tokens [B, N, D] of one "
            f'number and width; give blocks="path.to.the.list", one of {_lists(model)}'
        )
    paths = max(found)[-1]
    modules = dict(model.named_modules())
    kind, above = type(modules[paths[0]]), paths[0].rpartition(".")[0]
    if isinstance(modules[above], nn.ModuleList) and isinstance(modules[above.rpartition(".")[0]], nn.ModuleList):
        raise BeyondClsError(
            f"blocks of {type(model).__name__} seem to be lists ({above}, …) whose parts the model calls one by one, where "
            "attention is not seen; make each a module that puts out its tokens, with its residual sums"
        )
    if others := {path for stack in seen.attended for path in stack if type(modules[path]) is kind} - set(paths):
        raise BeyondClsError(
            f"{type(model).__name__} has further blocks of the kind {kind.__name__} ({', '.join(sorted(others)[:3])}, …), "
            "expected all in one list, with as many tokens; models that merge patches between stages have no one grid of them"
        )
    return paths


def blocks_at(model: nn.Module, paths: str | Sequence[str], seen: Record) -> tuple[str, ...]:
    """Paths of the blocks that a user names: a list of modules, or each of them.

    Raises:
        BeyondClsError: there is no such module, or one does not put out tokens.
    """
    known = dict(model.named_modules())
    if isinstance(paths, str):
        if paths not in known:
            raise BeyondClsError(f"{type(model).__name__} has no module {paths!r}; its lists of modules: {_lists(model)}")
        paths = [f"{paths}.{name}" for name, _ in known[paths].named_children()]
    for path in paths:
        out = seen.out(path)
        if out is None or out.ndim != 3:
            what = "ran not once" if out is None else f"puts out {list(out.shape)}"
            raise BeyondClsError(f"{path!r} is no block of {type(model).__name__}: it {what}, expected tokens [B, N, D]")
    if not paths:
        raise BeyondClsError(f"blocks names no module of {type(model).__name__}; its lists of modules: {_lists(model)}")
    return tuple(paths)


def _lists(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and isinstance(module, nn.ModuleList | nn.Sequential)]
    return ", ".join(names[:8]) or "none"


def find_attention(blocks: Sequence[str], seen: Record) -> tuple[tuple[str, ...], str]:
    """Of each block the path of its attention's branch, and why attention cannot be seen, if so."""
    branches = []
    for block in blocks:
        stacks = [stack for stack in seen.attended if block in stack]
        if len(stacks) != 1:
            return (), (
                f"block {block} computes attention {len(stacks)} times where it can be seen (by scaled_dot_product_attention, "
                "nn.MultiheadAttention, or a softmax over rows whose result is multiplied with values), expected once"
            )
        tokens = seen.out(block)
        within = stacks[0][stacks[0].index(block) + 1 :]
        shape = None if tokens is None else tokens.shape
        branches.append(next((path for path in within if (out := seen.out(path)) is not None and out.shape == shape), ""))
    return tuple(branches), ""


def find_norm(model: nn.Module, blocks: Sequence[str], seen: Record) -> str:
    """Path of the norm that the last block's tokens, or its [cls], go through next; empty if there is none."""
    tokens, modules = seen.out(blocks[-1]), dict(model.named_modules())
    assert tokens is not None
    for path in seen.order[seen.order.index(blocks[-1]) + 1 :]:
        if "norm" in type(modules[path]).__name__.lower() and is_of_tokens(seen.taken[path], tokens):
            return path
    return ""


def is_of_tokens(values: Tensor, tokens: Float[Tensor, "1 N D"], n_prefix: int = 0) -> bool:
    """Whether values are tokens, the first of them, or the average of those behind the prefix."""
    same = [tokens, tokens[:, :1], tokens[:, 0], tokens[:, n_prefix:].mean(1), tokens.mean(1)]
    return any(values.shape == one.shape and torch.allclose(values, one, rtol=1e-4, atol=1e-4) for one in same)


def find_prefix(model: nn.Module, forward: Forward, image: Tensor, blocks: Sequence[str], grid: tuple[int, int]) -> int:
    """How many tokens come before the patches, from what changes when the pixels of one patch do.

    Raises:
        BeyondClsError: there are fewer tokens than patches, patches do not come last and row by row, or two passes differ.
    """
    rows, columns = grid
    high, wide = image.shape[2] // rows, image.shape[3] // columns
    first = record(model, forward, image).taken[blocks[0]]
    if not torch.equal(first, record(model, forward, image).taken[blocks[0]]):
        raise BeyondClsError(
            f"{type(model).__name__} gives other tokens in each pass over one image: it masks or drops at random, expected the "
            "same; give forward=lambda model, images: …, which runs it without"
        )
    n_prefix = first.shape[1] - rows * columns
    if n_prefix < 0:
        raise BeyondClsError(
            f"{type(model).__name__} has {first.shape[1]} tokens of an image, expected {rows} x {columns} patches or more; "
            "give patch_size, and the input_size that it takes"
        )
    for row, column in {(0, 0), (rows // 2, columns - 1), (rows - 1, columns // 3)}:
        changed = image.clone()
        changed[:, :, row * high : (row + 1) * high, column * wide : (column + 1) * wide] *= -1
        moved = (record(model, forward, changed).taken[blocks[0]] - first).float().norm(dim=-1)[0]
        if int(moved.argmax()) != n_prefix + row * columns + column:
            raise BeyondClsError(
                f"pixels of the patch in row {row}, column {column} change token {int(moved.argmax())} of {len(moved)} most, "
                f"expected token {n_prefix + row * columns + column}: {type(model).__name__} must have its {rows} x {columns} "
                "patches last and row by row; give patch_size, or forward=…, if this is another grid"
            )
    return n_prefix


def find_cls(model: nn.Module, width: int, n_prefix: int) -> bool:
    """Whether the first prefix token is [cls], by the name of the parameter that it starts from.

    Raises:
        BeyondClsError: there are prefix tokens, and no name shows whether [cls] is among them.
    """
    if n_prefix == 0:
        return False
    for name, parameter in model.named_parameters():
        own = name.rpartition(".")[2].lower()
        if any(part in own for part in CLS_NAMES) and parameter.numel() == width:
            return True
    raise BeyondClsError(
        f"{type(model).__name__} has {n_prefix} tokens before its patches, and no parameter named like [cls]; give "
        "has_cls=True if the first is [cls], or has_cls=False if all are registers"
    )


def patch_side(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of a patch in pixels, of the first convolution of images whose stride is its size."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.in_channels == 3:
            stride = (int(module.stride[0]), int(module.stride[1]))
            return stride if stride == tuple(module.kernel_size) and math.prod(stride) > 1 else None
    return None


def side_of(model: nn.Module) -> tuple[int, int]:
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
