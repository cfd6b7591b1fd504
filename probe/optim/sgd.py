"""Stochastic gradient descent with momentum."""

from torch import Tensor

from probe.optim.optimiser import Optimiser, along


class SGD(Optimiser):
    """m ← μ m + (g + λ w), w ← w - lr · m; weight decay λ of all parameters.

    As `torch.optim.SGD`. (The official code uses it without momentum.)
    """

    averages = ("momentum",)

    def update(self, name: str, parameter: Tensor, gradient: Tensor, lr: Tensor) -> None:
        average = self.state[f"{name}.momentum"].mul_(self.momentum).add_(gradient)
        average.addcmul_(along(self.weight_decay, parameter), parameter)
        parameter.addcmul_(lr, average, value=-1)
