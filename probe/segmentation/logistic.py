"""Logistic regression of patch labels, with the penalty selected on held-out images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.closed.protocol import check_grid
from probe.segmentation.patch_head import PatchHead
from probe.segmentation.patches import Patches, channel_scale
from probe.softmax_regression import fit, stored_blocks
from store import BeyondClsError
from store.loading.placement import free_memory

CS = tuple(10.0 ** (-6 + 11 * i / 7) for i in range(8))  # CAPI's grid
BLOCK = 8192
MEMORY_SHARE = 0.5  # of what is free, for training patches
ABSENT = -1e4  # logit of a class without training patches; finite, so that logits can be interpolated


@dataclass(frozen=True)
class PatchLogistic:
    """Softmax regression with an L2 penalty, to convergence; all penalties in the same passes over the patches.

    Attributes:
        cs: the grid; C multiplies the summed loss, as in scikit-learn. By default CAPI's 8 values, 1e-6 to 1e5.
        standardise: each channel by its mean and standard deviation over the training patches.
        max_passes: over the training patches, at most.
    """

    cs: tuple[float, ...] = CS
    standardise: bool = True
    max_passes: int = 500

    def __post_init__(self) -> None:
        check_grid("cs", self.cs)
        if self.max_passes < 2:
            raise BeyondClsError(f"max_passes is {self.max_passes}, expected 2 or more: the first measures channels alone")
        object.__setattr__(self, "cs", tuple(sorted(self.cs)))

    def fit(
        self, training: Patches, cs: Sequence[float], progress: Callable[[int], None] = lambda n: None
    ) -> tuple[dict[float, PatchHead], list[str]]:
        """A head for each C, and notes on what did not converge. Classes without training patches are never predicted.

        Args:
            progress: called with the number of passes since the last call.

        Raises:
            BeyondClsError: fewer than two classes among the training patches.
        """
        present = torch.from_numpy((training.counts > 0).nonzero()[0]).to(training.device)
        if len(present) < 2:
            raise BeyondClsError(f"training patches have {len(present)} classes, expected 2 or more to tell apart")
        mean, scale = channel_scale(training, self.standardise)
        class_number = torch.zeros(training.n_classes, dtype=torch.int64, device=training.device)
        class_number[present] = torch.arange(len(present), device=training.device)
        n = training.n_labelled

        def read() -> Iterator[tuple[Tensor, Tensor]]:
            return ((tokens.sub(mean).mul_(scale), class_number[labels]) for tokens, labels in training.blocks(BLOCK))

        blocks: Callable[[], Iterator[tuple[Tensor, Tensor]]] = read
        if 4 * n * training.dim <= MEMORY_SHARE * free_memory(training.device):  # otherwise they are read in each pass
            x, y = torch.empty(n, training.dim, device=training.device), class_number.new_empty(n)
            filled = 0
            for tokens, labels in read():
                x[filled : filled + len(tokens)], y[filled : filled + len(tokens)] = tokens, labels
                filled += len(tokens)
            blocks = lambda: stored_blocks(x, y, BLOCK)  # noqa: E731
        fitted = fit(blocks, n, len(present), cs, max_passes=self.max_passes, progress=progress)
        heads, notes = {}, []
        for i, c in enumerate(cs):
            weight, bias = torch.zeros(training.n_classes, training.dim), torch.full((training.n_classes,), ABSENT)
            weight[present.cpu()], bias[present.cpu()] = fitted.weight[i].T.float().cpu(), fitted.bias[i].float().cpu()
            grid = training.source.store.grid
            heads[c] = PatchHead(mean.cpu(), scale.cpu(), weight, bias, grid, training.final_norm).eval()
            if not fitted.converged[i]:
                so_far = f"did not converge in {fitted.n_passes} passes; give more (--max-passes)"
                notes.append(f"logistic regression with C = {c:g} {so_far}")
        return heads, notes
