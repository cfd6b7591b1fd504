"""Trained modules on disk: parameters as safetensors, everything else as JSON next to them. Loading never runs code."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from store import BeyondClsError
from store.errors import first_line, other_version

M = TypeVar("M", bound=nn.Module)
NAME_NBYTES = 50  # at least, of a tensor in the header of a .safetensors file
REPLACED = 4  # times the file: some parameters are replaced while a module is made
BUFFERS_NBYTES = 64 << 20  # at most, that are computed and are not in the file, as codes of positions


@dataclass(frozen=True)
class Kind:
    """A kind of trained modules.

    Attributes:
        name: in messages.
        command: that trains them.
        version: of the format of their description.
        task: in their description; None for heads for whole images.
    """

    name: str
    command: str
    version: int
    task: str | None = None


def save_module(path: Path, kind: Kind, module: nn.Module, described: Mapping[str, Any]) -> None:
    """Write `path`.safetensors and `path`.json. `described`: what it is built from, and for the reader how it was trained."""
    path.parent.mkdir(parents=True, exist_ok=True)
    description, parameters = files_of(path)
    save_file({name: values.detach().cpu().contiguous() for name, values in module.state_dict().items()}, parameters)
    task = {} if kind.task is None else {"task": kind.task}
    eps = getattr(module.final_norm, "eps", None)
    content = {"format_version": kind.version, **task, "final_norm_eps": eps, **described}
    description.write_text(json.dumps(content, indent=1) + "\n")


def load_module(path: str | Path, kind: Kind, build: Callable[[dict[str, Any], Path], M]) -> tuple[M, dict[str, Any]]:
    """A module in evaluation mode, and the content of its JSON file.

    Args:
        path: of either file, or their common stem.
        build: makes a module, given that content and the file of parameters, which are then put into it.

    Raises:
        BeyondClsError: a file is missing, damaged, of another task or format version, or the two do not fit each other.
    """
    stem = stem_of(path)
    description, parameters = files_of(stem)
    for file in (description, parameters):
        if not file.is_file():
            raise BeyondClsError(f"there is no {kind.name} {str(file)!r}; `{kind.command} --out` writes one per seed")
    try:
        described = json.loads(description.read_text())
        if (task := described.get("task")) != kind.task:
            raise BeyondClsError(
                f"{description} is of {task or 'whole images'}, expected a {kind.name} as `{kind.command}` writes it"
                + ("; load detectors by load_detector" if task == "detection" else "")
            )
        if (version := described["format_version"]) != kind.version:
            raise BeyondClsError(other_version(description, version, kind.version, f"train it again: {kind.command}"))
        module = build(described, parameters)
        module.load_state_dict(load_file(parameters), strict=True)
    except BeyondClsError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise BeyondClsError(f"{stem} is not a readable {kind.name} ({reason}); train it again") from error
    return module.eval(), described


def make_module(build: Callable[[], M], parameters: Path, *sizes: int) -> M:
    """What `build` makes, whose parameters and buffers are not much larger than the file.

    They are counted as they are registered, on a device without memory, before it is made; loading the parameters compares
    exactly.

    Args:
        build: makes the module, twice alike; of any size that its description states.
        parameters: the .safetensors file.
        sizes: widths and numbers of classes in the description.

    Raises:
        ValueError: the file is too small for them.
    """
    nbytes = parameters.stat().st_size
    left = {nn.Parameter: REPLACED * nbytes, Tensor: nbytes + BUFFERS_NBYTES}

    def count(module: nn.Module, name: str, values: Tensor | None) -> None:
        if values is None or not values.is_meta:  # of a module that another thread makes
            return
        left[type(values)] -= values.nbytes + NAME_NBYTES
        if left[type(values)] < 0:
            raise ValueError(f"a larger model is described than {parameters.name} has parameters for")

    if max(sizes) > nbytes:
        raise ValueError(f"a width of {max(sizes)} is described, and {parameters.name} has {nbytes} bytes")
    of_parameters, of_buffers = (
        hooks.register_module_parameter_registration_hook,
        hooks.register_module_buffer_registration_hook,
    )
    with of_parameters(count), of_buffers(count), torch.device("meta"):
        build()
    return build()


def stem_of(path: str | Path) -> Path:
    """The common stem, given that or either file."""
    stem = Path(path)
    return stem.with_suffix("") if stem.suffix in (".json", ".safetensors") else stem


def files_of(stem: Path) -> tuple[Path, Path]:
    """Description and parameters."""
    return stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.safetensors")
