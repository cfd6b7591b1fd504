"""The base of all aggregators: tokens to one vector per image."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

Features = Mapping[str, Tensor]
Parameters = Mapping[str, Tensor]


class Pooled(NamedTuple):
    """One vector per image, and the weights over tokens that made it, where there are any (each row sums to 1)."""

    vector: Float[Tensor, "*M B W"]
    weights: Float[Tensor, "*M B T"] | None


class Aggregator(nn.Module, ABC):
    """Base of the aggregators.

    A subclass takes `dim`, the width of the tokens, as its first argument, names in `reads` the kinds of features that it
    needs, and defines `forward`; options are keyword arguments that JSON can hold. Features are never changed, and get no
    gradient:

    - "patch" [B, T, D], "cls" [B, D], "registers" [B, R, D]: tokens of the block that is probed; "patch/block5": of block 5;
    - "attention/cls", "attention/centre" [B, H, T]: rows of that block's attention, not renormalised over patches;
      "attention/cls/block5": of block 5;
    - "average" [B, D]: the mean of the probed block's patch tokens, and "average/block5", where extraction kept them;
    - "pooled" [B, W]: what the encoder's own pooling makes of the last block;
    - "joined/…": the same of a second feature set of the same images.

    Attributes:
        reads: kinds of features.
        width: W, of the vector; `dim` unless said otherwise.
        weighted: it gives a weight to each token of its bag (patches, or [cls] and patches).
        random_start: its initial parameters are random, so that seeds differ.
        uses_position: the vector depends on the order of the patches.
        needs_square: it takes them for a square grid, row by row.
        variants: options with which the contract of all aggregators tests it.
    """

    reads: tuple[str, ...] = ()
    weighted: bool = False
    random_start: bool = False
    uses_position: bool = False
    needs_square: bool = False
    variants: Sequence[Mapping[str, Any]] = ({},)

    def __init__(self, dim: int, width: int | None = None):
        super().__init__()
        self.dim = dim
        self.width = dim if width is None else width

    @abstractmethod
    def forward(self, features: Features) -> Pooled:
        """Vector [B, W] and weights [B, T] of each image; the mean over queries where there are several."""

    def use_vectors(self, has: Callable[[str], bool]) -> None:
        """Read vectors in place of the tokens that they were made of, where feature sets have them.

        Called before the first batch; most aggregators have no use for it.

        Args:
            has: whether a kind of features ("average/block5") is in all that will be read.
        """

    @property
    def takes_stored(self) -> bool:
        """Whether tokens may come in 16 bits, as they are stored; so if only `softmax_pool` reads them."""
        return False

    @property
    def trainable(self) -> bool:
        """Whether there are parameters."""
        return next(self.parameters(), None) is not None

    def pool_many(self, parameters: Parameters, features: Features, n_members: int = 1) -> Pooled:
        """The results of M aggregators of this class and these options on the same features.

        Args:
            parameters: the members' `named_parameters()`, stacked: name -> [M, …].
            features: of one batch.
            n_members: M of an aggregator without parameters, whose one result is then expanded (a view).

        Returns:
            Vector [M, B, W] and weights [M, B, T].
        """
        if self.trainable:
            return self.pool_members(parameters, features)
        vector, weights = self(features)
        expanded = None if weights is None else weights.expand(n_members, *weights.shape)
        return Pooled(vector.expand(n_members, *vector.shape), expanded)

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        """`pool_many` where there are parameters: `forward` of each member, vectorised; each draws its own random numbers."""

        def member(parameters_of_member: dict[str, Tensor]) -> tuple[Tensor, ...]:
            return tuple(x for x in torch.func.functional_call(self, parameters_of_member, (features,)) if x is not None)

        pooled = torch.vmap(member, randomness="different")(dict(parameters))
        return Pooled(pooled[0], pooled[1] if len(pooled) > 1 else None)
