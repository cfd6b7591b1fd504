"""Adam with decoupled weight decay."""

import torch
from torch import Tensor

from probe.optim.optimiser import Optimiser, along

BETA2, EPS = 0.999, 1e-8


class AdamW(Optimiser):
    """w ← w - lr · λ w - lr · m̂ / (√v̂ + ε), m̂ and v̂ the corrected averages of g and g²; β1 is `momentum`, β2 0.999, ε 1e-8.

    As `torch.optim.AdamW` (arXiv 1711.05101); weight decay λ of all parameters.
    """

    averages = ("first", "second")

    def update(self, name: str, parameter: Tensor, gradient: Tensor, lr: Tensor) -> None:
        correction, correction_square = (along(1 - beta ** self.state["steps"], parameter) for beta in (self.momentum, BETA2))
        mean = self.state[f"{name}.first"].mul_(self.momentum).add_(gradient, alpha=1 - self.momentum)
        mean_square = self.state[f"{name}.second"].mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        parameter.mul_(1 - lr * along(self.weight_decay, parameter))
        scale = torch.div(mean_square, correction_square, out=gradient).sqrt_().add_(EPS)
        parameter.sub_(torch.div(mean, scale, out=scale).mul_(lr / correction))
