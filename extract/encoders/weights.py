"""Loading a checkpoint strictly, and the digest of what was loaded."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from store import BeyondClsError

WRAPPERS = ("model", "state_dict")
CLASSIFIER = ("head.weight", "head.bias")  # of the classification head, which is no part of the encoder


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Tensors of a .safetensors file or of a torch checkpoint, by name. Never unpickles code (`weights_only=True`).

    A dictionary inside `model` or `state_dict` is unwrapped.

    Raises: BeyondClsError: no such file, not a checkpoint, or values that are not finite.
    """
    if not path.is_file():
        raise BeyondClsError(
            f"there is no checkpoint {str(path)!r}; give --checkpoint the path of a .safetensors or torch file"
        )
    try:
        content: Any = (
            load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
        )
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise BeyondClsError(f"{path} is not a readable checkpoint: {error}") from error
    except Exception as error:  # torch raises pickle.UnpicklingError for anything but tensors
        if type(error).__name__ != "UnpicklingError":
            raise
        message = str(error).splitlines()[0]
        raise BeyondClsError(f"{path} holds more than tensors and is not loaded, as that could run code: {message}") from error
    for wrapper in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise BeyondClsError(f"{path} holds no dictionary of tensors (looked at the top and in {', '.join(WRAPPERS)})")
    broken = [name for name, value in content.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise BeyondClsError(f"{path} has NaN or Inf in {shorten(broken)}; the file is damaged or its training diverged")
    return content


def load_strictly(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Put `state` into `model` as float32.

    Raises: BeyondClsError: names the keys that are missing, unexpected or of another shape.
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
        f"{what}: {shorten(keys)}"
        for what, keys in (("missing", missing), ("unexpected", unexpected), ("other shape", shapes))
        if keys
    ]
    if problems:
        raise BeyondClsError(f"{source} is a checkpoint of another architecture. " + "; ".join(problems))
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
