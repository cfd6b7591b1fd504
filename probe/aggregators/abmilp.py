"""Attention-based multiple-instance-learning pooling (AbMILP), the paper's selective aggregation; and behind self-attention."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probe.aggregators.aggregator import BAGS, Features, Parameters, Pooled, bag, choice, distinct_numbers, whole_number
from probe.aggregators.attentive import Attentive, linear
from store import BeyondClsError

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def sin_cos(n_patches: int, dim: int) -> Float[Tensor, "T D"]:
    """Codes of the patches row by row: D / 4 sines and cosines of the column, then of the row, in units of patches.

    Angular frequencies 10,000^(-4 i / D), i from 0 to D / 4 - 1, as in MoCo v3, MAE and the paper's official code.

    Raises:
        BeyondClsError: a grid that is not square, or a width that 4 does not divide.
    """
    side = math.isqrt(n_patches)
    if side * side != n_patches:
        raise BeyondClsError(f"there are {n_patches} patches, expected a square grid such as 14 x 14; use position='none'")
    if dim % 4:
        raise BeyondClsError(f"tokens are {dim} wide, expected a multiple of 4 for sine-cosine codes; use position='none'")
    frequencies = 10_000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angles = torch.arange(side, dtype=torch.float64)[:, None] * frequencies
    along = torch.cat([angles.sin(), angles.cos()], 1)  # [side, D / 2]
    columns, rows = along.repeat(side, 1), along.repeat_interleave(side, 0)
    return torch.cat([columns, rows], 1).float()


class AbMILP(Attentive):
    """Softmax over tokens of a score t(z_i), then the weighted sum of the tokens (Eq. 6).

    t is a multilayer perceptron of `depth` linear layers with k = `branches` outputs; hidden layers are D wide, each followed
    by `activation`: (depth - 1)(D² + D) + k (D + 1) parameters, and with learned positions T · D more, (T + 1) D with [cls].
    Depth 1, the paper's choice, has D + 1; its bias shifts all scores alike and cancels.

    Source: Ilse et al. 2018 (arXiv 1802.04712); Table 5; `ABMILPHead` in the official code, whose defaults are depth 2, tanh,
    content "all", behind self-attention. Linear layers start as torch's.

    Args:
        depth: linear layers, 1 to 4 in the paper.
        activation: after hidden layers: "relu", "gelu" or "tanh".
        tokens: "patch", or "all" for [cls] and patches (never registers); weights then are [B, 1 + T], [cls] first.
        position: "none", "sin-cos" for fixed codes that are added to what is scored, not to what is summed, zero at [cls]; or
            "learned": from there on trained, which is what `cond="pe"` of the official code does, as it frees all of the head.
        branches: k scores of each token, an ensemble of k weightings (the "horizontal scaling" that the paper asks for).
        combine: "concatenate" the k vectors, W = k · D, as the code of Ilse et al. does; or their "average", W = D.
        blocks: stored blocks whose tokens form one bag, with weights summed over blocks; only the probed block by default.
        n_patches: T; needed for positions only.
    """

    position: Tensor | None
    variants: Sequence[Mapping[str, Any]] = (
        {},
        {"depth": 2, "activation": "tanh"},
        {"depth": 4, "activation": "gelu"},
        {"tokens": "all"},
        {"position": "sin-cos"},
        {"position": "learned", "tokens": "all"},
        {"position": "learned", "depth": 2, "blocks": [3, 5]},
        {"branches": 3},
        {"branches": 3, "combine": "average", "depth": 2},
        {"blocks": [3, 5], "tokens": "all", "branches": 2},
        {"top_k": 4},
        {"top_k": 4, "depth": 2, "branches": 2},
    )

    def __init__(
        self,
        dim: int,
        depth: int = 1,
        activation: str = "relu",
        tokens: str = "patch",
        position: str = "none",
        branches: int = 1,
        combine: str = "concatenate",
        blocks: Sequence[int] | None = None,
        n_patches: int | None = None,
    ):
        concatenate = choice("way to combine branches", combine, ("concatenate", "average")) == "concatenate"
        super().__init__(dim, whole_number("branches", branches) * dim if concatenate else dim)
        self.depth, self.concatenate = whole_number("AbMILP depth", depth), concatenate
        self.kinds = BAGS[choice("bag of tokens", tokens, BAGS)]
        self.blocks = None if blocks is None else distinct_numbers("blocks", blocks)
        self.reads = tuple(kind for group in self._kinds_by_block() for kind in group)
        self.activation = ACTIVATIONS[choice("activation", activation, ACTIVATIONS)]()
        hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(dim, dim), self.activation)]
        self.score = nn.Sequential(*hidden, nn.Linear(dim, whole_number("branches", branches)))
        self.uses_position = self.needs_square = choice("position", position, ("none", "sin-cos", "learned")) != "none"
        if not self.uses_position:
            self.position = None
            return
        if n_patches is None:
            raise BeyondClsError(f"n_patches is unknown, expected the number of patches: position={position!r} needs it")
        codes = torch.cat([torch.zeros(len(self.kinds) - 1, dim), sin_cos(n_patches, dim)])
        if position == "learned":
            self.position = nn.Parameter(codes)
        else:
            self.register_buffer("position", codes, persistent=False)

    @property
    def takes_stored(self) -> bool:
        return self.depth == 1 and self.top_k is None

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        tokens = bag(features, self.reads)  # of all blocks
        if self.depth == 1:
            weight, bias = parameters["score.0.weight"], parameters["score.0.bias"][..., None]  # [M, k, D], [M, k, 1]
            position = self.positions(parameters, tokens.shape[1])
            return self.combined(*self.attend(tokens, weight, bias if position is None else bias + weight @ position.mT))
        return self.combined(*self.attend_by(self.scores(parameters, tokens[None]), tokens))

    def positions(self, parameters: Parameters, n_tokens: int) -> Float[Tensor, "*M N D"] | None:
        """Codes of the tokens in the bag; of each member, where they are learned."""
        position, n_blocks = parameters.get("position", self.position), len(self._kinds_by_block())
        if position is None:
            return None
        if position.shape[-2] * n_blocks != n_tokens:
            n_patches, expected = (n // n_blocks - len(self.kinds) + 1 for n in (n_tokens, position.shape[-2] * n_blocks))
            raise BeyondClsError(f"there are {n_patches} patches, expected {expected}, as many as AbMILP has positions")
        return position.repeat(*([1] * (position.ndim - 2)), n_blocks, 1)

    def scores(self, parameters: Parameters, x: Float[Tensor, "#M B N D"]) -> Float[Tensor, "M B k N"]:
        """t of each token, before the softmax."""
        position = self.positions(parameters, x.shape[2])
        if position is not None:
            x = x + (position if position.ndim == 2 else position[:, None])
        for i in range(self.depth):
            weight, bias = parameters[f"score.{2 * i}.weight"], parameters[f"score.{2 * i}.bias"]
            x = x if i == 0 else self.activation(x)
            rows = x.flatten(1, 2).expand(len(weight), -1, -1)  # [M, B · N, D]
            x = linear(rows, weight, bias).unflatten(1, x.shape[1:3])
        return x.mT

    def attend_by(
        self, scores: Float[Tensor, "M B k N"], tokens: Float[Tensor, "*M B N D"]
    ) -> tuple[Float[Tensor, "M B k D"], Float[Tensor, "M B k N"]]:
        """`attend` with scores that are not products of queries and tokens; tokens of all members, or of each."""
        weights = self.cut(scores.softmax(-1))
        if tokens.ndim == 4:
            return weights @ tokens, weights
        by_image = weights.movedim(0, 1)  # [B, M, k, N]
        return torch.bmm(by_image.flatten(1, 2), tokens).unflatten(1, by_image.shape[1:3]).movedim(1, 0), weights

    def combined(self, vectors: Float[Tensor, "M B k D"], weights: Float[Tensor, "M B k N"]) -> Pooled:
        """One vector from the branches, and their mean weights, summed over blocks."""
        vector = vectors.flatten(2) if self.concatenate else vectors.mean(2)
        return Pooled(vector, weights.mean(2).unflatten(-1, (len(self._kinds_by_block()), -1)).sum(-2))

    def _kinds_by_block(self) -> list[tuple[str, ...]]:
        """Kinds of features of each block."""
        return [tuple(f"{k}/block{b}" for k in self.kinds) for b in self.blocks] if self.blocks else [self.kinds]


class SelfAttentionAbMILP(AbMILP):
    """AbMILP of y = proj(softmax(q kᵀ / √D) v), a self-attention layer of one head over the bag, without residual or norm.

    Scores are of y + position; what is summed is y too, or the tokens themselves. 4 D² + D parameters more than AbMILP: q, k
    and v have no bias, proj has one.

    Each member attends for itself, N x N products an image: it costs M times what one member costs.

    Source: Rymarczyk et al. 2021 (arXiv 2005.12991); Table 3; `self_attention_apply_to` in the official code. Linear layers
    start as torch's. The paper could train it with SGD, not with LARS.

    Args:
        apply_to: "both" scores and sum, or the "map" alone (tokens are summed as they are).
        depth, activation, tokens, position, branches, combine, blocks, n_patches: see `AbMILP`.
    """

    variants = (
        {},
        {"apply_to": "map", "depth": 2},
        {"branches": 2, "tokens": "all"},
        {"position": "sin-cos", "blocks": [3, 5]},
        {"top_k": 2},
    )

    def __init__(
        self,
        dim: int,
        apply_to: str = "both",
        depth: int = 1,
        activation: str = "relu",
        tokens: str = "patch",
        position: str = "none",
        branches: int = 1,
        combine: str = "concatenate",
        blocks: Sequence[int] | None = None,
        n_patches: int | None = None,
    ):
        super().__init__(dim, depth, activation, tokens, position, branches, combine, blocks, n_patches)
        self.sums_attended = choice("use of self-attention", apply_to, ("both", "map")) == "both"
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    @property
    def takes_stored(self) -> bool:
        return False

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        tokens = bag(features, self.reads)
        attended = self.attended(parameters, tokens)
        return self.combined(*self.attend_by(self.scores(parameters, attended), attended if self.sums_attended else tokens))

    def attended(self, parameters: Parameters, bag: Float[Tensor, "B N D"]) -> Float[Tensor, "M B N D"]:
        """y; tokens are projected by q, k and v of all members in one product."""
        weight = parameters["qkv.weight"]  # [M, 3 D, D]
        qkv = nn.functional.linear(bag, weight.flatten(0, 1)).unflatten(-1, (len(weight), 3, -1))
        q, k, v = qkv.permute(3, 2, 0, 1, 4)  # each [M, B, N, D]
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return linear(y.flatten(1, 2), parameters["proj.weight"], parameters["proj.bias"]).unflatten(1, y.shape[1:3])
