"""Layer-wise adaptive rate scaling."""

import torch
from torch import Tensor

from probe.optim.optimiser import Optimiser, along

TRUST = 0.001


class LARS(Optimiser):
    """d = q (g + λ w) with q = 0.001 |w| / |g + λ w|; m ← μ m + d, w ← w - lr · m (arXiv 1708.03888).

    As in MAE's and the official code, the number of axes that a parameter has in one head decides: with fewer than two (biases,
    scales and shifts of normalisation) d is g alone, so that a step is lr · |g| long, whatever |w| is; with two or more it is
    0.001 lr · |w|. A learned query therefore has axes before its channels, [1, 1, D], as in its authors' code. q is 1 where one
    of the norms is 0. A parameter that begins near 0 moves slowly: initial values matter.
    """

    averages = ("momentum",)

    def update(self, name: str, parameter: Tensor, gradient: Tensor, lr: Tensor) -> None:
        trust = torch.ones_like(self.weight_decay)
        if parameter.ndim > 2:  # the first axis are the members
            gradient.addcmul_(along(self.weight_decay, parameter), parameter)
            norm, update_norm = (values.flatten(1).norm(dim=1).to(trust.dtype) for values in (parameter, gradient))
            trust = torch.where((norm > 0) & (update_norm > 0), TRUST * norm / update_norm, trust)
        average = self.state[f"{name}.momentum"].mul_(self.momentum).addcmul_(gradient, along(trust, parameter))
        parameter.addcmul_(lr, average, value=-1)
