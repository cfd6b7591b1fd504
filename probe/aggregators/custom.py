"""Custom aggregators: classes in files of the user."""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor

from probe.aggregators.aggregator import Aggregator, Features
from store import BeyondClsError
from store.errors import unknown


def is_custom(name: str) -> bool:
    """Whether a name is FILE.py:CLASS."""
    return ".py:" in name


def custom_aggregator(name: str) -> type[Aggregator]:
    """The class that `my_file.py:MyPool` names. Runs that file, once as long as it is unchanged: trust it before you name it.

    Raises:
        BeyondClsError: no such file or class, an error in it, or a class that is not an Aggregator.
    """
    file, _, cls = name.rpartition(":")
    with explained(name, f"{file} cannot be imported"):
        module = _module(_path(file), custom_digest(name))
    classes = {
        n: v for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Aggregator) and v is not Aggregator
    }
    if cls in classes:
        return classes[cls]
    if hasattr(module, cls):
        raise BeyondClsError(f"{cls} in {file} is not an aggregator; derive it from beyondcls.Aggregator")
    raise BeyondClsError(unknown(f"aggregator in {file}", cls, classes))


def custom_digest(name: str) -> str:
    """SHA-256 of the file that `my_file.py:MyPool` names.

    Raises:
        BeyondClsError: no such file.
    """
    return hashlib.sha256(_path(name.rpartition(":")[0]).read_bytes()).hexdigest()


@contextmanager
def explained(name: str, failure: str) -> Iterator[None]:
    """Turn any error in the file of FILE.py:CLASS into a message with the line where it occurred.

    Raises:
        BeyondClsError: any error.
    """
    try:
        yield
    except BeyondClsError:
        raise
    except (Exception, SystemExit) as error:
        path = str(Path(name.rpartition(":")[0]).resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        place = f" in line {lines[-1]}" if lines else ""
        reason = str(error).splitlines()[0] if str(error) else ""
        raise BeyondClsError(f"{failure}{place} ({type(error).__name__}: {reason}); mend it") from error


@torch.no_grad()
def check_custom(name: str, aggregator: Aggregator, features: Features, n_patches: int | None) -> None:
    """Try a custom aggregator on a few images, alone and as a member of a grid.

    Args:
        features: what it reads, of B images.
        n_patches: T.

    Raises:
        BeyondClsError: it fails, or returns anything other than vectors [B, W] and weights [B, T] or None.
    """
    n_images = len(next(iter(features.values())))
    with torch.random.fork_rng(devices=[]), explained(name, f"{name} fails on {', '.join(aggregator.reads)}"):
        _check_pooled(name, aggregator.eval()(features), (n_images, aggregator.width), n_patches)
    if aggregator.trainable:
        failure = f"{name} works alone, but not for several members at once (define pool_members, too)"
        with torch.random.fork_rng(devices=[]), explained(name, failure):
            members = {parameter: torch.stack([p, p]) for parameter, p in aggregator.named_parameters()}
            pooled = aggregator.train().pool_many(members, features)
        _check_pooled(f"pool_many of {name}", pooled, (2, n_images, aggregator.width), n_patches)


def check_made(name: str, aggregator: Aggregator) -> None:
    """Refuse an aggregator without valid `reads`.

    Raises:
        BeyondClsError: `reads` is not a sequence of kinds of features.
    """
    reads = aggregator.reads
    if not isinstance(reads, tuple | list) or not reads or not all(isinstance(kind, str) for kind in reads):
        raise BeyondClsError(f"reads of {name} is {reads!r}, expected kinds of features, e.g. ('patch',) with its comma")


def _check_pooled(name: str, pooled: Any, shape: tuple[int, ...], n_patches: int | None) -> None:
    if not isinstance(pooled, tuple) or len(pooled) != 2 or not isinstance(pooled[0], Tensor):
        raise BeyondClsError(
            f"{name} returns {_shown(pooled)}, expected vectors {list(shape)}, and weights or None; "
            "return Pooled(vector, weights)"
        )
    vector, weights = pooled
    if vector.shape != shape:
        raise BeyondClsError(
            f"{name} returns vectors {list(vector.shape)}, expected {list(shape)}: {shape[-2]} images, each {shape[-1]} wide; "
            "give another width to super().__init__(dim, width)"
        )
    if weights is None:
        return
    if not isinstance(weights, Tensor) or weights.shape[:-1] != shape[:-1] or weights.shape[-1] < (n_patches or 1):
        raise BeyondClsError(
            f"{name} returns weights {_shown(weights)}, expected {[*shape[:-1], n_patches]}, one for each patch (others come "
            "before them); return the mean over queries where there are several, or None"
        )
    if not torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]), atol=1e-2):
        raise BeyondClsError(
            f"{name} returns weights that sum to {weights.sum(-1).flatten()[0].item():.3g}, expected 1 for each image; "
            "divide by the sum, or return None"
        )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _path(file: str) -> Path:
    path = Path(file).resolve()
    if not path.is_file():
        raise BeyondClsError(f"there is no file {file!r} (looked for {path}); expected FILE.py:CLASS, e.g. my_pool.py:MyPool")
    return path


@cache
def _module(path: Path, digest: str) -> ModuleType:
    """The module that running a file gives; `digest` is that of its content, so that an edited file runs again."""
    name = f"_beyondcls_own_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}_{digest[:16]}"
    loader = _Source(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _Source(SourceFileLoader):
    """Compiles the file itself: bytecode caches miss an edit within the same second that keeps the length."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)
