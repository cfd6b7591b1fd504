"""What a head costs: its parameters, and the floating-point operations, memory and stored bytes of one image."""

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from probe.head import Head
from probe.sources import Source


@dataclass(frozen=True)
class Cost:
    """Cost of a head on features of one shape.

    Attributes:
        parameters: of the aggregator, trained.
        parameters_classifier: of the classifier, W · K + K; None for a protocol without a linear classifier.
        flops_per_image: of one image by itself, in a forward pass through aggregator and classifier as they are computed here,
            a multiplication and an addition counting as two. Only matrix products count: no softmax, norm, activation, average
            or sort. None if they could not be counted.
        bytes_per_image: stored bytes that the head reads (scales of narrow tokens included).
        memory_per_image: bytes that the operation of that forward pass which needs most reads and writes, in float32, weights
            left out; what the encoder has put out is there without any head, and counts where the operation reads it.
        flops_of_encoder: of one image in the frozen encoder, counted the same way; None where the feature set does not say.
    """

    parameters: int
    parameters_classifier: int | None
    flops_per_image: int | None
    bytes_per_image: int | None = None
    memory_per_image: int | None = None
    flops_of_encoder: int | None = None


def cost_of(
    head: Head,
    shapes: Mapping[str, tuple[int, ...]],
    bytes_per_image: int | None = None,
    flops_of_encoder: int | None = None,
) -> Cost:
    """Cost of a head. Nothing is computed: tensors are on torch's meta device, which has shapes only.

    There torch counts every product. On a CPU some run in oneDNN, which the counter does not see.

    Args:
        shapes: of one image, by kind of features that the head reads.
    """
    n_parameters, n_of_classifier = (sum(p.numel() for p in part.parameters()) for part in (head.aggregator, head.classifier))
    features: dict[str, Tensor] = {kind: torch.empty(1, *shape, device="meta") for kind, shape in shapes.items()}
    flops, memory = None, None
    with suppress(Exception):  # of an aggregator whose steps depend on values, such as an iteration until nothing changes
        shadow = copy.deepcopy(head).to("meta").eval()  # not in training: one image has no variance over the batch
        with torch.no_grad(), FlopCounterMode(display=False) as counter, _Largest(shadow) as largest:
            shadow(features)
        flops, memory = counter.get_total_flops(), largest.nbytes
    return Cost(n_parameters, n_of_classifier, flops, bytes_per_image, memory, flops_of_encoder)


def shapes_read(head: Head, source: Source) -> dict[str, tuple[int, ...]]:
    """The shape of one image, by kind of features that a head reads."""
    return {kind: tuple(source.arrays(kind)[0].shape[1:]) for kind in head.aggregator.reads}


def bytes_read(head: Head, source: Source) -> int:
    """Bytes that a head reads of one image in one view, in the stored dtypes."""
    return sum((array := source.arrays(kind)[0]).nbytes // array.shape[0] for kind in head.aggregator.reads)


class _Largest(TorchDispatchMode):
    """Bytes of the operation that reads and writes most, weights left out. A view moves none."""

    def __init__(self, head: Head):
        super().__init__()
        self.nbytes = 0
        self._weights = {tensor.untyped_storage()._cdata for tensor in (*head.parameters(), *head.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = (leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor))
            by_storage = {t.untyped_storage()._cdata: t.numel() * t.itemsize for t in tensors}
            self.nbytes = max(self.nbytes, sum(n for storage, n in by_storage.items() if storage not in self._weights))
        return out
