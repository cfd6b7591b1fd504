"""Optimisers of many members at once, by name (to add one: a class, and its line in OPTIMISERS), and the schedule."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

TRUST = 0.001
BETA2, EPS = 0.999, 1e-8


def learning_rate(epoch: float, base: float, epochs: float, warmup: float) -> float:
    """At a fractional `epoch`: linear warm-up over `warmup` epochs, then half a cosine to zero (as MAE's, per iteration)."""
    if epoch < warmup:
        return base * epoch / warmup
    return base * (1 + math.cos(math.pi * (epoch - warmup) / (epochs - warmup))) / 2


class Optimiser(ABC):
    """Updates parameters of M members, each with its own learning rate and weight decay.

    A member's update depends on its own parameters and gradients alone: M members take the steps that each would take alone.

    Args:
        parameters: name -> [M, ...].
        weight_decay: of each member.
        momentum: of all.

    Attributes:
        state: name of a parameter and of its running average -> [M, ...], what a checkpoint has to hold besides the
            parameters; and "steps", [M].
    """

    averages: Sequence[str] = ()

    def __init__(self, parameters: Mapping[str, Tensor], weight_decay: Float[Tensor, "M"], momentum: float):
        self.parameters, self.weight_decay, self.momentum = dict(parameters), weight_decay, momentum
        self.state = {f"{n}.{average}": torch.zeros_like(p) for n, p in parameters.items() for average in self.averages}
        self.state["steps"] = torch.zeros_like(weight_decay)

    @torch.no_grad()
    def step(self, lr: Float[Tensor, "M"]) -> None:
        """One update by the parameters' gradients, which are cleared."""
        self.state["steps"] += 1
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self.update(name, parameter, parameter.grad, along(lr, parameter))
                parameter.grad = None

    @abstractmethod
    def update(self, name: str, parameter: Tensor, gradient: Tensor, lr: Tensor) -> None:
        """Change a parameter [M, ...] in place; `lr` broadcasts to it, and the gradient may be overwritten.

        On a CPU, allocating memory for as many values takes longer than everything else.
        """

    def keep(self, parameters: Mapping[str, Tensor], members: Tensor) -> None:
        """Keep only some of the members, whose new parameters are given."""
        self.parameters = dict(parameters)
        self.weight_decay = self.weight_decay[members]
        self.state = {name: values[members] for name, values in self.state.items()}


def along(values: Float[Tensor, "M"], parameter: Tensor) -> Tensor:
    """One value a member, in a shape that broadcasts to [M, ...]."""
    return values.to(parameter.dtype).view(-1, *(1,) * (parameter.ndim - 1))


class SGD(Optimiser):
    """m ← μ m + (g + λ w), w ← w - lr · m; weight decay λ of all parameters.

    As `torch.optim.SGD`. (The official code uses it without momentum.)
    """

    averages = ("momentum",)

    def update(self, name: str, parameter: Tensor, gradient: Tensor, lr: Tensor) -> None:
        average = self.state[f"{name}.momentum"].mul_(self.momentum).add_(gradient)
        average.addcmul_(along(self.weight_decay, parameter), parameter)
        parameter.addcmul_(lr, average, value=-1)


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


OPTIMISERS: dict[str, type[Optimiser]] = {"lars": LARS, "sgd": SGD, "adamw": AdamW}
