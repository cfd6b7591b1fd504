"""Attentive probing (AP): cross-attention of one learned query."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from probe.aggregators.aggregator import Features, Parameters, Pooled
from probe.aggregators.attentive import Attentive
from probe.aggregators.bag import bag, kinds_in_bag
from probe.aggregators.layers import head_width, linear, through_keys, through_values
from probe.aggregators.options import choice, flag, whole_number
from probe.aggregators.token_statistics import TokenStatistics
from store import BeyondClsError

FORMS = ("plain", "aim", "cae")
EPS = 1e-6


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
    """

    variants = (
        {},
        {"heads": 1},
        {"heads": 4, "norm": True},
        {"heads": 4, "top_k": 5},
        {"form": "aim"},
        {"form": "aim", "heads": 1, "top_k": 5, "tokens": "all"},
        {"form": "cae"},
        {"form": "cae", "heads": 2, "top_k": 5},
        {"form": "cae", "tokens": "all"},
    )

    def __init__(self, dim: int, heads: int = 12, norm: bool = False, form: str = "plain", tokens: str = "patch"):
        super().__init__(dim)
        self.heads, self.form = whole_number("heads", heads), choice("form of attentive probing", form, FORMS)
        head_width(dim, heads)
        self.reads = kinds_in_bag(tokens)
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
        return self.form == "plain" and self.norm is None and self.top_k is None

    def pool_members(self, parameters: Parameters, features: Features) -> Pooled:
        tokens = bag(features, self.reads)
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
