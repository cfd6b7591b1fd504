"""Loading a checkpoint strictly, and the digest of what was loaded."""

import argparse
import hashlib
import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from store import BeyondClsError

WRAPPERS = ("model", "state_dict")
# Names of the classification head, which does not belong to the encoder.
CLASSIFIER = ("head.weight", "head.bias", "head.fc.weight", "head.fc.bias")


def _number(dtype: np.dtype, data: bytes) -> np.generic:
    """A number of numpy from its bytes; raises for objects, whose bytes must not be trusted."""
    return np.frombuffer(data, dtype)[0]


def _path(*parts: object) -> str:
    """A path, as text: it may come from another system, and nothing is opened."""
    return "/".join(map(str, parts)).replace("//", "/") or "."  # which Pythons before 3.13 write as no part


# What training scripts leave beside the weights, and how it is read: as plain data, no code. Schedules leave learning rates
# as numbers of numpy in an optimizer's state; files of numpy 1 say `core` where those of numpy 2 say `_core`. Launchers of
# clusters (submitit) leave folders in `args`, which Python 3.13 names by another module than Pythons before and after it.
PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
BESIDE: list[Any] = [
    argparse.Namespace,
    *((_path, f"{module}.{kind}") for module in ("pathlib", "pathlib._local") for kind in PATHS),
    (OrderedDict, "yacs.config.CfgNode"),
    (_number, "numpy.core.multiarray.scalar"),
    (_number, "numpy._core.multiarray.scalar"),
    np.dtype,
    *{type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64)},
]


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Content of a .safetensors file or of a torch checkpoint. Never unpickles code (`weights_only=True`).

    Options that argparse or yacs left beside the weights, including paths, and numbers of numpy, are read as
    plain data.

    Raises:
        BeyondClsError: no such file, not a checkpoint, or one that holds anything else; the message names its type.
    """
    if not path.is_file():
        raise BeyondClsError(
            f"there is no checkpoint {str(path)!r}; give --checkpoint the path of a .safetensors or torch file"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(BESIDE), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of formats that are refused below
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
        if "weights_only" in str(error):
            raise BeyondClsError(_refusal(path, str(error))) from None
        raise BeyondClsError(f"{path} is not a readable checkpoint: {error}") from error
    except Exception as error:  # torch raises pickle.UnpicklingError for anything but tensors
        if type(error).__name__ != "UnpicklingError":
            raise
        raise BeyondClsError(_refusal(path, str(error))) from None
    if not isinstance(content, dict):
        raise BeyondClsError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")
    return content


def _refusal(path: Path, message: str) -> str:
    """Replaces torch's message, which advises to switch the safety off."""
    kind = re.search(r"(?:GLOBAL|but got) (?:<class ')?([\w.]+)", message)
    if "Unsupported operand" in message:
        return (
            f"{path} is not a readable checkpoint: torch.save did not write it; is it a plain pickle, a page of a web server, "
            "or a .safetensors file by another name?"
        )
    if "TorchScript" in message:
        state = "is a TorchScript archive, which holds code,"
    elif ".tar" in message:
        state = "has the .tar format of old torch"
    else:
        state = f"holds more than tensors, a {kind[1]}," if kind else "holds more than tensors"
    return (
        f"{path} {state} and is not loaded, as that could run code; load it once where you trust its source, save its tensors "
        "alone, and give that file: torch.save({'model': content['model']}, 'tensors.pth'), with the key that holds them"
    )


def unwrapped(
    content: Mapping[str, Any], wrappers: Sequence[str] = WRAPPERS, prefixes: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Tensors by name: those in the first of `wrappers` that the content has, or else at the top.

    Args:
        content: of a checkpoint.
        wrappers: keys whose value may be the state dict.
        prefixes: of names, removed in this order; if any name has a prefix, only names with it count.

    Raises:
        BeyondClsError: no dictionary of tensors is in it.
    """
    state: Any = next((content[name] for name in wrappers if isinstance(content.get(name), dict)), content)
    for prefix in prefixes:
        if any(isinstance(name, str) and name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    if not state or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()):
        places = ", ".join(["at the top", *(f"in {name!r}" for name in wrappers)])
        keys = shorten([str(name) for name in content])
        raise BeyondClsError(f"the checkpoint holds no dictionary of tensors {places}; it holds {keys or 'nothing'}")
    return dict(state)


def names_in(content: Mapping[str, Any]) -> list[str]:
    """Names at the top of a checkpoint and in the dictionaries there."""
    inside = (name for part in content.values() if isinstance(part, dict) for name in part)
    return [name for name in (*content, *inside) if isinstance(name, str)]


def drop_prefixes(state: Mapping[str, Tensor], *prefixes: str) -> dict[str, Tensor]:
    """The tensors whose names begin with none of `prefixes`."""
    return {name: value for name, value in state.items() if not name.startswith(prefixes)}


def load_strictly(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Put `state` into `model` as float32.

    Raises:
        BeyondClsError: the message names keys that are missing, unexpected, of another shape, or whose values are not finite.
    """
    state = {k: v for k, v in state.items() if k not in CLASSIFIER}
    expected = model.state_dict()
    missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    shapes = [
        f"{k} {list(state[k].shape)} for {list(expected[k].shape)}"
        for k in sorted(expected.keys() & state.keys())
        if state[k].shape != expected[k].shape
    ]
    problems = [
        f"{kind}: {shorten(keys)}"
        for kind, keys in (("missing", missing), ("unexpected", unexpected), ("other shape", shapes))
        if keys
    ]
    if problems:
        raise BeyondClsError(f"{source} is a checkpoint of another architecture. " + "; ".join(problems))
    broken = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise BeyondClsError(f"{source} has NaN or Inf in {shorten(broken)}; the file is damaged or its training diverged")
    model.load_state_dict({k: v.to(expected[k].dtype) for k, v in state.items()}, strict=True)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all parameters and buffers, 32 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        values = value.detach().cpu().contiguous()
        digest.update(f"{name}:{values.dtype}:{list(values.shape)};".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().astype(np.uint8, copy=False).tobytes())
    return digest.hexdigest()[:32]


def shorten(items: list[str], n: int = 5) -> str:
    """The first `n`, and how many there are."""
    return ", ".join(items[:n]) + (f", … ({len(items)} in all)" if len(items) > n else "")
