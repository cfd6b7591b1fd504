"""The base of all aggregators, tokens to one vector per image; and their options: plain JSON values, checked."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from store import BeyondClsError
from store.errors import unknown

Features = Mapping[str, Tensor]
Parameters = Mapping[str, Tensor]
BAGS = {"patch": ("patch",), "all": ("cls", "patch")}


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


def whole_number(name: str, value: Any, lowest: int = 1) -> int:
    """A whole number.

    Raises:
        BeyondClsError: not a whole number, or one below `lowest`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise BeyondClsError(f"{name} is {value!r}, expected {lowest} or more (a whole number)")
    return value


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of several words.

    Raises:
        BeyondClsError: not one of `choices`.
    """
    if value not in tuple(choices):
        raise BeyondClsError(unknown(name, str(value), choices))
    return value


def flag(name: str, value: Any) -> bool:
    """True or false.

    Raises:
        BeyondClsError: neither true nor false.
    """
    if not isinstance(value, bool):
        raise BeyondClsError(f"{name} is {value!r}, expected true or false")
    return value


def kinds_of_blocks(kind: str, blocks: Sequence[int] | None) -> tuple[str, ...]:
    """The kind itself, which means the probed block; or that of each of some blocks: "cls/block5".

    Raises:
        BeyondClsError: not a list of different whole numbers from 0 on.
    """
    return (kind,) if blocks is None else tuple(f"{kind}/block{block}" for block in distinct_numbers("blocks", blocks))


def distinct_numbers(name: str, value: Any) -> list[int]:
    """Whole numbers, each once.

    Raises:
        BeyondClsError: not a list of different whole numbers from 0 on.
    """
    numbers = [whole_number(f"one of {name}", v, 0) for v in value] if isinstance(value, list | tuple) else []
    if not numbers or len(set(numbers)) < len(numbers):
        raise BeyondClsError(f"{name} is {value!r}, expected a list of different whole numbers such as [3, 5]")
    return numbers


class Weighted(Aggregator):
    """Base of aggregators whose vector is made of Σ_t w_t x_t. Subclasses sum with `weigh`, so that `top_k` works for all.

    Attributes:
        top_k: K, the number of weights of each query that count; all by default (`make_aggregator` sets it).
    """

    weighted = True
    top_k: int | None = None

    def weigh(self, tokens: Float[Tensor, "B T D"], weights: Float[Tensor, "B T"]) -> Pooled:
        """The weighted sum of each image's tokens."""
        weights = self.cut(weights)
        # A batched matrix product: the elementwise product of the sum would write B x T x D numbers.
        return Pooled(torch.bmm(weights[:, None], tokens).squeeze(1), weights)

    def cut(self, weights: Float[Tensor, "*rows T"]) -> Float[Tensor, "*rows T"]:
        """The K largest weights of each row, made to sum to 1, and 0 elsewhere; unchanged without `top_k`.

        Among equal weights, those of the first tokens are kept.

        Raises:
            BeyondClsError: there are fewer than K tokens.
        """
        if self.top_k is None:
            return weights
        if self.top_k > weights.shape[-1]:
            raise BeyondClsError(f"top_k is {self.top_k}, expected at most {weights.shape[-1]}, the number of tokens")
        ordered, indices = weights.sort(stable=True, dim=-1, descending=True)
        largest = ordered[..., : self.top_k]
        return torch.zeros_like(weights).scatter(-1, indices[..., : self.top_k], largest / largest.sum(-1, keepdim=True))


def bag(features: Features, kinds: Iterable[str]) -> Float[Tensor, "B N D"]:
    """Tokens of several kinds, concatenated; a single kind is returned as it is."""
    tokens = [x if (x := features[kind]).ndim == 3 else x[:, None] for kind in kinds]
    return tokens[0] if len(tokens) == 1 else torch.cat(tokens, 1)
