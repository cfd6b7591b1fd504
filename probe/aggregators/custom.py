"""Custom aggregators: classes in files of the user."""

from typing import Any

import torch
from torch import Tensor

from probe.aggregators.aggregator import Aggregator, Features
from store import BeyondClsError
from store.errors import unknown
from store.user_code import explaining, module_of


def custom_aggregator(name: str) -> type[Aggregator]:
    """The class that `my_file.py:MyPool` names. Runs that file, once as long as it is unchanged: trust it before you name it.

    Raises:
        BeyondClsError: no such file or class, an error in it, or a class that is not an Aggregator.
    """
    file, _, cls = name.rpartition(":")
    module = module_of(name)
    types = {n: v for n, v in vars(module).items() if isinstance(v, type) and v is not Aggregator}
    classes = {n: v for n, v in types.items() if issubclass(v, Aggregator)}
    if cls in classes:
        return classes[cls]
    if hasattr(module, cls):
        raise BeyondClsError(f"{cls} in {file} is not an aggregator; derive it from beyondcls.Aggregator")
    raise BeyondClsError(unknown(f"aggregator in {file}", cls, classes))


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
    with torch.random.fork_rng(devices=[]), explaining(name, f"{name} fails on {', '.join(aggregator.reads)}"):
        _check_pooled(name, aggregator.eval()(features), (n_images, aggregator.width), n_patches)
    if aggregator.trainable:
        failure = f"{name} works alone, but not for several members at once (define pool_members, too)"
        with torch.random.fork_rng(devices=[]), explaining(name, failure):
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
            f"{name} returns {_as_text(pooled)}, expected vectors {list(shape)}, and weights or None: a Pooled"
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
            f"{name} returns weights {_as_text(weights)}, expected {[*shape[:-1], n_patches]}, one for each patch (others come "
            "before them); return the mean over queries where there are several, or None"
        )
    total = weights.sum(-1).flatten()
    if not torch.allclose(total, torch.ones_like(total), atol=1e-2):
        shown = f"{total[0].item():.3g}"
        raise BeyondClsError(f"{name} returns weights that sum to {shown}, expected 1 for each image; divide, or return None")


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_as_text, value))})"
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__
