"""What a head costs: its parameters, and the floating-point operations and stored bytes of one image."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from probe.head import Head
from probe.sources import Source


@dataclass(frozen=True)
class Cost:
    """Cost of a head on features of one shape.

    Attributes:
        parameters: of the aggregator, trained.
        parameters_classifier: of the classifier, W · K + K; None for a protocol that has no linear one.
        flops_per_image: of one image by itself, in a forward pass through aggregator and classifier as they are computed here,
            a multiplication and an addition counting as two. Matrix products alone count: no softmax, norm, activation, average
            or sort. None if they could not be counted.
        bytes_per_image: that the head reads from the store, as they are stored (scales of narrow tokens included).
    """

    parameters: int
    parameters_classifier: int | None
    flops_per_image: int | None
    bytes_per_image: int | None = None


def cost_of(head: Head, shapes: Mapping[str, tuple[int, ...]], bytes_per_image: int | None = None) -> Cost:
    """Cost of a head. Nothing is computed: tensors are on torch's meta device, which knows shapes alone.

    There every product is one that torch counts. On a CPU, some are oneDNN's, of which the counter knows nothing.

    Args:
        shapes: of one image, of all kinds of features that the head reads.
    """
    own = sum(p.numel() for p in head.aggregator.parameters())
    return Cost(own, sum(p.numel() for p in head.classifier.parameters()), _flops(head, shapes), bytes_per_image)


def shapes_read(head: Head, source: Source) -> dict[str, tuple[int, ...]]:
    """Of one image, of all that a head reads."""
    return {kind: tuple(source.arrays(kind)[0].shape[1:]) for kind in head.aggregator.reads}


def bytes_read(head: Head, source: Source) -> int:
    """Of one image in one view, of all that a head reads, in the dtypes in which it is stored."""
    arrays = [source.arrays(kind)[0] for kind in head.aggregator.reads]
    return sum(array.nbytes // array.shape[0] for array in arrays)


def _flops(head: Head, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    features: dict[str, Tensor] = {kind: torch.empty(1, *shape, device="meta") for kind, shape in shapes.items()}
    try:
        shadow = copy.deepcopy(head).to("meta").eval()  # not in training: one image has no variance over the batch
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            shadow(features)
    except Exception:  # an aggregator whose steps depend on values, such as an iteration until nothing changes
        return None
    return counter.get_total_flops()
