"""How long heads take to learn on this machine, measured on tokens that mean nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.grid import HeadSpec
from probe.head import FinalNorm
from probe.pooling import reads_stored
from probe.stack import Stack
from probe.timing import fastest
from probe.train import isolated_randomness, losses_of
from store.format.layout import kind_of

AT_ONCE = {"cpu": 32, "cuda": 512}  # images
VECTORS = "vectors"  # name in a batch


@dataclass(frozen=True)
class HeadRate:
    """Seconds of one image, for all members of a head together, of features in memory.

    Attributes:
        learn_s: forward and backward, without the optimiser's step, which comes once a batch.
        judge_s: forward.
        pool_s: through an aggregator without parameters, once for all members; else 0. `learn_s` and `judge_s` then begin with
            its vectors.
        width: of its vector, in numbers.
    """

    learn_s: float
    judge_s: float
    pool_s: float
    width: int

    @property
    def is_pooled(self) -> bool:
        """Whether the aggregator has no parameters, so that the vector of an image never changes."""
        return self.pool_s > 0


def measure_head(
    spec: HeadSpec,
    shapes: Mapping[str, tuple[int, ...]],
    n_members: int,
    n_classes: int,
    multilabel: bool,
    device: torch.device,
) -> HeadRate:
    """Measure a head on random features.

    Args:
        shapes: of one image, by kind of features, of all that the head reads: {"patch": (T, D), "cls": (D,), …}.
        n_members: seeds and settings that train side by side.

    Raises:
        BeyondClsError: unknown aggregator or options.
    """
    n, (dim, n_patches) = AT_ONCE[device.type], _sizes(shapes)
    norm = FinalNorm(torch.ones(dim), torch.zeros(dim), 1e-6) if spec.final_norm else None
    heads = [spec.build(dim, n_patches, n_classes, norm, seed) for seed in range(n_members)]
    aggregator = heads[0].aggregator.to(device)
    stored = torch.float16 if reads_stored(device) and aggregator.takes_stored and norm is None else torch.float32
    with isolated_randomness(0):
        batch = {kind: _random_features(kind, (n, *shapes[kind]), stored).to(device) for kind in aggregator.reads}
        labels = torch.randint(2, (n, n_classes)) if multilabel else torch.randint(n_classes, (n,))
        batch["label"] = labels.to(device)
        pool_s = 0.0
        if not aggregator.trainable:
            with torch.no_grad():
                pool_s = fastest(lambda: aggregator.eval()(batch), device) / n
                batch[VECTORS] = torch.randn(n, aggregator.width, device=device)
        stack = Stack(heads, device, None if aggregator.trainable else VECTORS)
        final_norm = None if norm is None else norm.to(device)
        learn_s = fastest(lambda: _backpropagate(stack, batch, final_norm), device) / n
        with torch.no_grad():
            judge_s = fastest(lambda: stack(batch), device) / n
    return HeadRate(learn_s, judge_s, pool_s, aggregator.width)


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int | None]:
    """D, and T where there are patches."""
    patch = next((shape for kind, shape in shapes.items() if kind_of(kind) == "patch"), None)
    tokens = next((shape for kind, shape in shapes.items() if kind_of(kind) in ("patch", "cls", "registers")), (1,))
    return tokens[-1], None if patch is None else patch[0]


def _random_features(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random tokens; or rows of attention, which are positive and sum to 1."""
    values = torch.randn(shape)
    return values.softmax(-1) if "attention" in kind else values.to(dtype)


def _backpropagate(stack: Stack, batch: Mapping[str, Tensor], final_norm: FinalNorm | None) -> None:
    features = batch if final_norm is None else final_norm(batch)
    logits, _ = stack(features, training=True)
    losses_of(logits, batch["label"]).sum().backward()
