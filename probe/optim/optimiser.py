"""The base of all optimisers of stacked members."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


class Optimiser(ABC):
    """Updates parameters of M members, each with its own learning rate and weight decay.

    A member's update depends on its own parameters and gradients alone: M members take the steps that each would take alone.

    Args:
        parameters: name -> [M, ...].
        weight_decay: of each member.
        momentum: of all.

    Attributes:
        state: name of a parameter and of its running average -> [M, ...], what a checkpoint has to hold beside the
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
