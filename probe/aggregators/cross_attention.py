"""Cross-attention of queries with the tokens: attentive probing (AP), efficient probing (EP), SimPool, the pooler of V-JEPA."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from probe.aggregators.aggregator import BAGS, Features, Parameters, Pooled, bag, choice, flag, kinds_of_blocks, whole_number
from probe.aggregators.attentive import Attentive, head_width, linear, through_keys, through_values
from probe.ranks import MOMENTUM, mean_over_ranks, world_size
from store import BeyondClsError

FORMS = ("plain", "aim", "cae")
EPS = 1e-6


class TokenStatistics(nn.Module):
    """As BatchNorm1d(affine=False) over all tokens of all images of a batch, of all processes: (x - mean) / √(variance + eps).

    Members of a grid read the same tokens, so one mean and variance serve all of them, and no token is rewritten: with
    x̂ = scale ∘ x + shift, the scale goes into the queries, and both go into the pooled vector. Training uses the statistics of
    the batch and updates running ones (variance over n - 1), which evaluation uses.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, tokens: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "D"], Float[Tensor, "D"]]:
        """Scale and shift that normalise them."""
        mean, variance = self.mean, self.variance
        if self.training:
            of_these, own = torch.var_mean(tokens, (0, 1), correction=0)
            mean = mean_over_ranks(own.clone())  # which sums in place
            variance = mean_over_ranks(of_these + (own - mean).square())  # ÷ n
            n = tokens.shape[0] * tokens.shape[1] * world_size()
            with torch.no_grad():
                self.mean.lerp_(mean, MOMENTUM)
                self.variance.lerp_(variance * (n / max(1, n - 1)), MOMENTUM)
        scale = (variance + self.eps).rsqrt()
        return scale, -mean * scale


class AttentiveProbing(Attentive):
    """The heads' Σ_t softmax_t(q_h · W_{k,h} x_t / √(D / H)) W_{v,h} x_t, concatenated, with the layers that the form adds.

    One head keeps the width of the vector (Table 7, "1 head"). The forms differ in what is normalised and projected:

    - "plain": nothing; with `norm` each token, by one layer normalisation for keys and values. 2 D² + D parameters, 2 D more
      with `norm`. AIM's without its normalisation: here the head normalises after the pooling.
    - "aim": each channel of the tokens, over all tokens of a batch (BatchNorm1d without parameters, eps 1e-6, running mean and
      variance for evaluation). 2 D² + D parameters. AIM's classifier follows at once, as with the head's normalisation "none".
    - "cae": the query, the tokens for keys and those for values each pass their own layer normalisation (eps 1e-6), then the
      query a projection and the heads' values another; no residual, no multilayer perceptron. 4 D² + 10 D parameters. CAE has
      [cls] in the bag (tokens="all"), and normalises the vector over the batch as the head does (eps 1e-5, ours 1e-6).

    "plain" and "aim" start with a query from N(0, 0.02²) and torch's linear layers, without bias. "cae" starts with weights
    from N(0, 0.02²), biases (none of keys) and query 0: with uniform attention.

    Source: El-Nouby et al. 2024 (AIM, arXiv 2401.08541), Chen et al. 2022 (CAE, arXiv 2202.03026) and both official codes. The
    paper cites CAE for attentive probing. It does not say which form Table 7 has, and its official code has none of them; 12
    heads are the default of AIM as of CAE-B.

    Args:
        heads: H.
        norm: of "plain": layer normalisation of the tokens (eps 1e-6, scale and shift trained, from 1 and 0) before keys and
            values.
        form: "plain", "aim" or "cae".
        tokens: "patch", or "all" for [cls] and patches (never registers); weights then are [B, 1 + T], [cls] first.
        blocks: attend to [cls] and the average patch of each of these stored blocks instead, 2 n tokens, as attentive fusion of
            layers does (Ciernik et al. 2026, arXiv 2601.09322); `norm` makes blocks alike in scale. No weights of patches.
    """

    variants: Sequence[Mapping[str, Any]] = (
        {},
        {"heads": 1},
        {"blocks": [3, 5], "norm": True},
        {"heads": 4, "norm": True},
        {"heads": 4, "top_k": 5},
        {"form": "aim"},
        {"form": "aim", "heads": 1, "top_k": 5, "tokens": "all"},
        {"form": "cae"},
        {"form": "cae", "heads": 2, "top_k": 5},
        {"form": "cae", "tokens": "all"},
    )

    def __init__(
        self,
        dim: int,
        heads: int = 12,
        norm: bool = False,
        form: str = "plain",
        tokens: str = "patch",
        blocks: Sequence[int] | None = None,
    ):
        super().__init__(dim)
        self.heads, self.form = whole_number("heads", heads), choice("form of attentive probing", form, FORMS)
        head_width(dim, heads)
        self.reads = BAGS[choice("bag of tokens", tokens, BAGS)]
        self._averages: tuple[str, ...] = ()
        if blocks is not None:
            if tokens != "patch":
                raise BeyondClsError(f"tokens is {tokens!r}, but blocks reads [cls] and average patches; leave out one")
            self._averages, self.weighted = kinds_of_blocks("average", blocks), False
            self.reads = (*kinds_of_blocks("cls", blocks), *kinds_of_blocks("patch", blocks))
        if flag("norm", norm) and form != "plain":
            raise BeyondClsError(f"norm is true, expected false: form={form!r} normalises the tokens in its own way")
        cae = form == "cae"
        # [1, 1, D] as in its authors' code: LARS treats a parameter with one axis as a bias.
        self.query = nn.Parameter(torch.zeros(1, 1, dim) if cae else torch.randn(1, 1, dim) * 0.02)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=cae)
        self.norm = nn.LayerNorm(dim, eps=EPS) if norm else None
        if form == "aim":
            self.statistics = TokenStatistics(dim, EPS)
        if cae:
            self.norm_query, self.norm_key, self.norm_value = (nn.LayerNorm(dim, eps=EPS) for _ in range(3))
            self.by_query, self.proj = nn.Linear(dim, dim), nn.Linear(dim, dim)
            for layer in (self.by_query, self.key, self.value, self.proj):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    @property
    def takes_stored(self) -> bool:
        return self.form == "plain" and self.norm is None and self.top_k is None and not self._averages

    def use_vectors(self, has: Callable[[str], bool]) -> None:
        if self._averages and all(map(has, self._averages)):
            self.reads = (*self.reads[: len(self._averages)], *self._averages)

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        if not self._averages:
            return self._pool(parameters, bag(features, self.reads))
        vectors = [features[kind] for kind in self.reads]
        tokens = torch.stack([x.mean(1) if x.ndim == 3 else x for x in vectors], 1)  # [B, 2 n, D]
        return Pooled(self._pool(parameters, tokens).vector, None)

    def _pool(self, parameters: Parameters, tokens: Float[Tensor, "B T D"]) -> Pooled:
        if self.form == "cae":
            return self.pool_cae(parameters, tokens)
        queries = through_keys(parameters["query"].flatten(1), parameters["key.weight"], self.heads)
        if self.form == "aim":
            scale, shift = self.statistics(tokens)
            pooled, weights = self.attend(tokens, queries * scale)
            pooled = torch.addcmul(shift, pooled, scale)
        elif self.norm is None:
            pooled, weights = self.attend(tokens, queries)
        else:
            affine = parameters["norm.weight"], parameters["norm.bias"]
            pooled, weights = self.attend_normalised(tokens, queries, *affine, self.norm.eps)
        return Pooled(through_values(pooled, parameters["value.weight"]), weights.mean(2))

    def pool_cae(self, parameters: Parameters, tokens: Float[Tensor, "B T D"]) -> Pooled:
        """The form "cae". The shift of what keys are made of cancels in the softmax, as their bias would."""

        def member(name: str) -> Tensor:
            return parameters[name][:, None]  # [M, 1, D]

        query = layer_norm(parameters["query"].squeeze(1), (self.dim,), eps=EPS)  # [M, 1, D]
        query = torch.addcmul(member("norm_query.bias"), query, member("norm_query.weight"))
        query = linear(query, parameters["by_query.weight"], parameters["by_query.bias"]).squeeze(1)
        queries = through_keys(query, parameters["key.weight"], self.heads)  # [M, H, D]
        shift = queries @ parameters["norm_key.bias"][..., None]  # [M, H, 1]
        normalised = layer_norm(tokens, (self.dim,), eps=EPS)
        pooled, weights = self.attend(normalised, queries * member("norm_key.weight"), shift)
        pooled = torch.addcmul(member("norm_value.bias")[:, None], pooled, member("norm_value.weight")[:, None])
        values = through_values(pooled, parameters["value.weight"]) + member("value.bias")
        return Pooled(linear(values, parameters["proj.weight"], parameters["proj.bias"]), weights.mean(2))


class EfficientProbing(Attentive):
    """Query j pools Σ_t softmax_t(q_j · x_t / √D) V_j x_t; the Q results stand side by side: W = D / `divide`.

    The V_j are the Q parts of one projection D -> W. Keys are the tokens: Q · D + D² / `divide` parameters.

    Source: Psomas et al. 2025 (arXiv 2506.10178) and its official code: 32 queries from N(0, 0.02²), a projection without bias
    that starts as torch's linear layers. Of the 37 encoders in its authors' table, 10 are read with [cls] in the bag (`ep_all`
    there), as their pretraining defines an objective on it. That decides the sign of the gain: DINO ViT-B/16 reaches 77.4 with
    it and 75.7 without, [cls] alone 77.2.

    Args:
        queries: Q.
        divide: by how much the vector is narrower than the tokens (`d_out` in the official code).
        tokens: "patch", or "all" for [cls] and patches (never registers); weights then are [B, 1 + T], [cls] first.
    """

    variants = ({}, {"queries": 8, "divide": 2}, {"queries": 4, "top_k": 1}, {"tokens": "all"})

    def __init__(self, dim: int, queries: int = 32, divide: int = 1, tokens: str = "patch"):
        super().__init__(dim, dim // whole_number("divide", divide))
        if dim % divide or self.width % whole_number("queries", queries):
            raise BeyondClsError(
                f"queries is {queries} and divide {divide}, expected queries · divide to divide the width, {dim}"
            )
        self.reads = BAGS[choice("bag of tokens", tokens, BAGS)]
        self.queries = nn.Parameter(torch.randn(queries, dim) * 0.02)
        self.value = nn.Linear(dim, self.width, bias=False)

    @property
    def takes_stored(self) -> bool:
        return self.top_k is None

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        pooled, weights = self.attend(bag(features, self.reads), parameters["queries"] * self.dim**-0.5)
        return Pooled(through_values(pooled, parameters["value.weight"]), weights.mean(2))


class SimPool(Attentive):
    """Σ_t softmax_t(W_q x̄ · W_k n_t / √D) n_t with x̄ = mean_t x_t and n = LayerNorm(x). 2 D² + 2 D parameters.

    One query, no projection of values. Not here: the power mean over tokens (γ = 1.25 for ViTs in the paper; γ = 1 is this
    average), which is not linear in the tokens; the authors' own probing benchmark leaves it out too.

    Source: Psomas et al. 2023 (arXiv 2309.06891); as a probe: the code of arXiv 2506.10178, "simpool". W_q and W_k have no bias
    and start as torch's linear layers; layer normalisation with eps 1e-6, scale 1 and shift 0.
    """

    reads = ("patch",)
    variants = ({}, {"top_k": 3})

    def __init__(self, dim: int):
        super().__init__(dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        tokens, by_query = features["patch"], parameters["query.weight"]
        queries = linear(tokens.mean(1).expand(len(by_query), -1, -1), by_query)  # [M, B, D]
        affine = parameters["norm.weight"], parameters["norm.bias"]
        queries = through_keys(queries, parameters["key.weight"])
        pooled, weights = self.attend_normalised(tokens, queries, *affine, self.norm.eps)
        return Pooled(pooled.squeeze(2), weights.squeeze(2))


class VJEPAPooler(Attentive):
    """y = q + proj(attention(W_q q + b_q, LayerNorm(x))), then y + MLP(LayerNorm(y)), of one learned query q.

    Hidden width `ratio` · D with GELU; all layers have biases: (4 + 2 · ratio) D² + (10 + ratio) D parameters.

    Source: Bardes et al. 2024 (arXiv 2404.08471) and its official code (`AttentivePooler`, one query, depth 1, complete block;
    12 heads by default, eps 1e-5). Weights and the query start from N(0, 0.02²), biases at 0, `proj` and the second layer of
    the MLP divided by √2. Not implemented: depth above 1, more blocks on the resulting vector; `v-jepa-2` has them before it.

    Args:
        heads: attention heads.
        ratio: hidden width of the MLP over D.
    """

    reads = ("patch",)
    variants = ({}, {"heads": 2, "ratio": 1, "top_k": 3})

    def __init__(self, dim: int, heads: int = 12, ratio: int = 4):
        super().__init__(dim)
        self.heads, hidden = whole_number("heads", heads), whole_number("ratio", ratio) * dim
        head_width(dim, heads)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))  # its authors' shape: LARS treats a parameter with one axis as a bias
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.keys_values, self.proj = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        nn.init.trunc_normal_(self.token, std=0.02)
        for layer in (self.query, self.keys_values, self.proj, self.fc1, self.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.proj.weight /= math.sqrt(2)
            self.fc2.weight /= math.sqrt(2)

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        def layer(name: str, x: Tensor) -> Tensor:
            return linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

        token = parameters["token"].squeeze(1)  # [M, 1, D]
        key, value = parameters["keys_values.weight"].chunk(2, 1)
        queries, affine = layer("query", token).squeeze(1), (parameters["norm1.weight"], parameters["norm1.bias"])
        queries = through_keys(queries, key, self.heads)
        pooled, weights = self.attend_normalised(features["patch"], queries, *affine, self.norm1.eps)
        values = through_values(pooled, value) + parameters["keys_values.bias"][:, None, self.dim :]
        y = token + layer("proj", values)  # [M, B, D]
        scale, shift = parameters["norm2.weight"][:, None], parameters["norm2.bias"][:, None]
        normalised = torch.addcmul(shift, layer_norm(y, y.shape[-1:], eps=self.norm2.eps), scale)
        return Pooled(y + layer("fc2", gelu(layer("fc1", normalised))), weights.mean(2))
