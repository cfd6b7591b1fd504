"""A head: an aggregator and a classifier."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn

from probe.aggregators import Aggregator, Features
from store import BeyondClsError, FeatureStore, StoreError
from store.errors import unknown
from store.format.layout import kind_of
from store.shown import html_table

NORMALISATIONS = ("batch", "none")
# Of the classifier: the deviation of what its weights are drawn from, and a factor; None is torch's own start.
INITS: dict[str, tuple[float, float] | None] = {"normal": (0.01, 1.0), "small": (0.02, 0.001), "uniform": None}
EPS = 1e-6
TOKENS = ("patch", "cls", "registers")


class FinalNorm(nn.Module):
    """The encoder's last norm, which is not yet applied to stored tokens; frozen.

    A LayerNorm; with a weight and a bias of no channels, an RMSNorm.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Float[Tensor, "D"], bias: Float[Tensor, "D"], eps: float):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.eps = eps

    @classmethod
    def from_store(cls, store: FeatureStore) -> Self:
        """The final norm of a feature set's encoder.

        Raises:
            StoreError: the encoder has no final norm.
        """
        eps, encoder = store.attributes["norm_eps"], store.attributes["encoder"]
        if eps is None:
            raise StoreError(f"{store.where} ({encoder}) has no final norm to apply; train this head without final_norm")
        if "norm/weight" not in store.arrays:
            return cls(torch.zeros(0), torch.zeros(0), eps)
        weight, bias = (torch.from_numpy(store.array(f"norm/{name}").all()) for name in ("weight", "bias"))
        return cls(weight, bias, eps)

    @classmethod
    def saved_with(cls, parameters: Path, dim: int, eps: float | None) -> Self | None:
        """One for the parameters of a head that are in this file; None without eps."""
        if eps is None:
            return None
        name = "final_norm.weight"
        with safe_open(parameters, "pt") as content:
            is_rms = name in content.keys() and content.get_slice(name).get_shape() == [0]  # noqa: SIM118
        n = 0 if is_rms else dim
        return cls(torch.zeros(n), torch.zeros(n), float(eps))

    def forward(self, features: Features) -> dict[str, Tensor]:
        """Normalised tokens; other features are unchanged."""
        return {kind: self._norm(values) if kind_of(kind) in TOKENS else values for kind, values in features.items()}

    def _norm(self, tokens: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        if not self.weight.numel():
            return F.rms_norm(tokens, tokens.shape[-1:], eps=self.eps)
        return F.layer_norm(tokens, tokens.shape[-1:], self.weight, self.bias, self.eps)


class Head(nn.Module):
    """Aggregator, batch normalisation without parameters, linear classifier.

    BatchNorm1d(affine=False, eps=1e-6) comes before the classifier in the official code (and in MAE's), so that one learning
    rate fits encoders whose tokens differ in scale.

    Where the classifier starts matters under LARS, whose steps are proportional to |w|. "normal": weights from N(0, 0.01²),
    bias 0, as MAE's linear probing does. "uniform": weights and bias from U(-1/√W, 1/√W), as torch's `nn.Linear`, which
    the official code of the paper leaves as it is for ViTs. "small": weights from N(0, (2e-5)²), bias 0, as its SimMIM, which
    draws from N(0, 0.02²) and multiplies by 0.001.

    Args:
        aggregator: tokens to one vector.
        n_classes: K.
        normalisation: of the vector: "batch" as above, or "none", a plain linear classifier.
        final_norm: applied to the tokens first.
        init: of the classifier.

    Raises:
        BeyondClsError: unknown normalisation or start.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        n_classes: int,
        normalisation: str = "batch",
        final_norm: FinalNorm | None = None,
        init: str = "normal",
    ):
        super().__init__()
        if normalisation not in NORMALISATIONS:
            raise BeyondClsError(unknown("normalisation", normalisation, NORMALISATIONS))
        if init not in INITS:
            raise BeyondClsError(unknown("init", init, INITS))
        self.aggregator, self.final_norm = aggregator, final_norm
        self.norm = nn.BatchNorm1d(aggregator.width, affine=False, eps=EPS) if normalisation == "batch" else nn.Identity()
        self.classifier = nn.Linear(aggregator.width, n_classes)
        if (start := INITS[init]) is not None:
            std, factor = start
            nn.init.trunc_normal_(self.classifier.weight, std=std)
            self.classifier.weight.data.mul_(factor)
            nn.init.zeros_(self.classifier.bias)

    def use_vectors(self, has: Callable[[str], bool]) -> None:
        """Read vectors in place of the tokens that they were made of, unless these are to be normalised first."""
        if self.final_norm is None:
            self.aggregator.use_vectors(has)

    def forward(self, features: Features) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B T"] | None]:
        """Logits, and the weights over patches if the aggregator has any."""
        vector, weights = self.aggregator(features if self.final_norm is None else self.final_norm(features))
        return self.classifier(self.norm(vector)), weights

    def _repr_html_(self) -> str:
        """The head as a table, in notebooks."""
        aggregator = self.aggregator
        n_parameters = [sum(p.numel() for p in part.parameters()) for part in (aggregator, self.classifier)]
        after = "" if self.final_norm is None else ", after the encoder's final norm"
        rows = {"reads": ", ".join(aggregator.reads) + after}
        rows["tokens, vector, classes"] = f"{aggregator.dim}, {aggregator.width}, {self.classifier.out_features}"
        rows["normalisation"] = "none" if isinstance(self.norm, nn.Identity) else "batch"
        rows["parameters"] = f"{n_parameters[0]:,} and {n_parameters[1]:,} of the classifier"
        return html_table(f"Head, {type(aggregator).__name__}", rows)
