"""What a checkpoint holds, loading it strictly, and the digest of what was loaded."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from extract.encoders.torch_file import HoldsCode, read_torch_file
from store import BeyondClsError

Content = Mapping[str, Any]  # of a checkpoint
State = dict[str, Tensor]  # tensors by name
WRAPPERS = ("model", "state_dict")
# Names of the classification head, which does not belong to the encoder.
CLASSIFIER = ("head.weight", "head.bias", "head.fc.weight", "head.fc.bias")
# Parts of names that say how a training ran (torch.compile, FSDP, activation checkpointing, Lightning), nothing of its model.
WRAPPING = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")
SELECTED = "selected by --checkpoint-key or --checkpoint-prefix"  # stored with the content of a file: the tensors to take
POSITIONS = ("pos_embed", "relative_position_bias_table")  # what names end in whose shapes follow from the size of images


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Content of a .safetensors file or of a torch checkpoint, of which no code is run.

    Options that argparse or yacs stored with the weights, including paths, and numbers of numpy, are read as
    plain data.

    Raises:
        BeyondClsError: no such file, not a checkpoint, or one that holds anything else; the message names its type.
    """
    if not path.is_file():
        raise BeyondClsError(
            f"there is no checkpoint {str(path)!r}; give --checkpoint the path of a .safetensors or torch file"
        )
    try:
        content: Any = load_file(path) if path.suffix == ".safetensors" else read_torch_file(path)
    except HoldsCode as error:
        raise BeyondClsError(
            f"{path} {error} and is not loaded, as that could run code; load it once where you trust its source, save its "
            "tensors alone, and give that file: torch.save({'model': content['model']}, 'tensors.pth'), with the key that "
            "holds them"
        ) from None
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        raise BeyondClsError(f"{path} is not a readable checkpoint: {error}") from error
    if not isinstance(content, dict):
        raise BeyondClsError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")
    return content


def unwrapped(
    content: Mapping[str, Any],
    wrappers: Sequence[str] = WRAPPERS,
    prefixes: Sequence[str] = (),
    dropped: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> dict[str, Tensor]:
    """Tensors by name: those that were selected, in the first of `wrappers` that the content has, or else at the top.

    Args:
        content: of a checkpoint.
        wrappers: keys whose value may be the state dict.
        prefixes: of names, removed in this order; if any name has a prefix, only names with it count.
        dropped: beginnings of the names of tensors that do not belong to the encoder.
        renamed: patterns in names, and what `re.sub` puts in their place, one after the other.

    Raises:
        BeyondClsError: no dictionary of tensors is in it.
    """
    taken = next((content[name] for name in (SELECTED, *wrappers) if isinstance(content.get(name), dict)), content)
    state: Any = with_plain_names(taken)
    for prefix in prefixes:
        if any(isinstance(name, str) and name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    if not state or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()):
        places = ", ".join(["at the top", *(f"in {name!r}" for name in wrappers)])
        raise BeyondClsError(
            f"the checkpoint holds no dictionary of tensors {places}; it holds {shorten(content) or 'nothing'}"
        )
    state = {name: value for name, value in state.items() if not name.startswith(tuple(dropped))}
    for theirs, ours in (renamed or {}).items():
        state = {re.sub(theirs, ours, name): value for name, value in state.items()}
    return state


def names_in(content: Mapping[str, Any]) -> list[str]:
    """Names at the top of a checkpoint and in the dictionaries there."""
    inside = (name for part in content.values() if isinstance(part, dict) for name in part)
    return [plain_name(name) for name in (*content, *inside) if isinstance(name, str)]


def name_with(content: Mapping[str, Any], signs: Sequence[str]) -> str | None:
    """The first name in a checkpoint that begins with one of `signs`, itself or a part of it after a dot."""
    return next((name for name in names_in(content) if any(f".{sign}" in f".{name}" for sign in signs)), None)


def plain_name(name: str) -> str:
    """A name without `WRAPPING`."""
    return ".".join(part for part in name.split(".") if part not in WRAPPING)


def with_plain_names(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The same values by names without `WRAPPING`; as they are, if two would have one name."""
    plain = {plain_name(name) if isinstance(name, str) else name: value for name, value in state.items()}
    return plain if len(plain) == len(state) else state


def prefixes_in(names: Iterable[str], expected: Iterable[str]) -> list[str]:
    """What comes, in any of the names, before one of the expected ones; each ends in a dot, or is empty."""
    known, prefixes = set(expected), dict[str, None]()
    for name in names:
        parts = name.split(".")
        prefixes |= {"".join(f"{part}." for part in parts[:i]): None for i in range(len(parts)) if ".".join(parts[i:]) in known}
    return list(prefixes)


def group_names(names: Iterable[str], prefixes: Iterable[str] = ()) -> list[str]:
    """Names by their first part, behind what they share with a prefix, and how many there are: `head.* (4)`."""
    counts: Counter[str] = Counter()
    starts = {prefix[: i + 1] for prefix in prefixes for i, letter in enumerate(prefix) if letter == "."}
    for name in names:
        parts = name.split(".")
        shared = max((start.count(".") for start in starts if name.startswith(start)), default=0)
        counts[name if len(parts) <= shared + 1 else ".".join([*parts[: shared + 1], "*"])] += 1
    return [f"{group} ({n})" if group.endswith(".*") else group for group, n in counts.items()]


def learnt_side(model: nn.Module, state: Mapping[str, Tensor]) -> int | None:
    """Side in pixels of the square images that positions in `state` are for, if it is another than the model's."""
    embedding = getattr(model, "patch_embed", None)
    grid, patch = getattr(embedding, "grid_size", None), getattr(embedding, "patch_size", None)
    if grid is None or patch is None or patch[0] != patch[1]:
        return None
    for name, expected in model.state_dict().items():
        theirs = state[name].shape if name in state else expected.shape
        if not name.endswith(POSITIONS) or theirs == expected.shape:
            continue
        if name.endswith("pos_embed") and len(theirs) == 3:
            n_patches = theirs[1] - (expected.shape[1] - grid[0] * grid[1])  # others are those of [cls] and registers
            side = math.isqrt(max(n_patches, 0))
            return side * patch[0] if side and side**2 == n_patches else None
        offsets = math.isqrt(max(theirs[0] - 3, 0))  # along an axis; three more concern [cls]
        return (offsets + 1) // 2 * patch[0] if offsets % 2 and offsets**2 == theirs[0] - 3 else None
    return None


def load_strictly(model: nn.Module, state: Mapping[str, Tensor], source: str, ignore: Sequence[str] = ()) -> list[str]:
    """Put `state` into `model` as float32.

    Args:
        source: of the state, for messages.
        ignore: patterns of names that the model lacks and that may be left out.

    Returns:
        The names that were left out because of `ignore`.

    Raises:
        BeyondClsError: the message counts and names keys that are missing, unexpected or of another shape, or names those whose
            values are not finite.
    """
    expected = model.state_dict()
    ignored = [k for k in state if k not in expected and any(fnmatchcase(k, pattern) for pattern in ignore)]
    state = {k: v for k, v in state.items() if k not in {*CLASSIFIER, *ignored}}
    common = sorted(expected.keys() & state.keys())
    other = [f"{k} {list(state[k].shape)} for {list(expected[k].shape)}" for k in common if state[k].shape != expected[k].shape]
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    differing = [
        f"{kind} ({len(keys)}): {', '.join(keys[:5])}{', …' * (len(keys) > 5)}"
        for kind, keys in {"missing": missing, "unexpected": unexpected, "other shape": other}.items()
        if keys
    ]
    if differing:
        raise BeyondClsError(
            f"{source} is a checkpoint of another architecture: it has {len(common) - len(other)} of the "
            f"model's {len(expected)} tensors. {'; '.join(differing)}{_remedy(model, state, missing, unexpected, other)}"
        )
    if broken := [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]:
        raise BeyondClsError(f"{source} has NaN or Inf in {shorten(broken)}; the file is damaged or its training diverged")
    if integers := [k for k, v in state.items() if expected[k].is_floating_point() and not v.is_floating_point()]:
        raise BeyondClsError(f"{source} has whole numbers in {shorten(integers)}, expected weights that were not quantised")
    model.load_state_dict({k: v.to(expected[k].dtype) for k, v in state.items()}, strict=True)
    return ignored


def _remedy(
    model: nn.Module, state: Mapping[str, Tensor], missing: list[str], unexpected: list[str], other_shapes: list[str]
) -> str:
    """What to give so that a state would fit, if anything is known."""
    expected = model.state_dict()
    fitting = {prefix: sum(f"{prefix}{name}" in state for name in expected) for prefix in prefixes_in(state, expected)}
    prefix = max(fitting, key=fitting.__getitem__, default="")
    if prefix and 2 * fitting[prefix] > len(expected):
        return f". Behind a prefix there are {fitting[prefix]}; give --checkpoint-prefix {prefix}"
    if missing:
        return ""
    if (side := learnt_side(model, state)) is not None:
        return f". Its positions are those of images of {side} x {side} pixels; give arguments: {{ img_size: {side} }}"
    if other_shapes:
        return ""
    if {name.partition(".")[0] for name in unexpected} & {name.partition(".")[0] for name in expected}:
        return ". It computes more than this architecture; give --model one that has these names"
    patterns = ",".join(group.partition(" ")[0] for group in group_names(name for name in state if name in unexpected))
    return f". If no token passes through them on its way to the last block, give --ignore '{patterns}'"


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all parameters and buffers, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        values = value.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{list(values.shape)};".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().astype(np.uint8, copy=False).tobytes())
    return digest.hexdigest()[:32]


def shorten(items: Iterable[Any], n: int = 5) -> str:
    """The first `n` as text, and how many there are."""
    texts = list(map(str, items))
    return ", ".join(texts[:n]) + (f", … ({len(texts)} in all)" if len(texts) > n else "")
