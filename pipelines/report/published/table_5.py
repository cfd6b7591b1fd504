"""Table 5 (v2) and Table 3 (v1) of the paper: variants of AbMILP."""

from dataclasses import dataclass

_PAPER = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215"
)
SOURCE = f"{_PAPER}v2, Table 5"
SOURCE_V1 = f"{_PAPER}v1, Table 3"
WHAT = "top-1 accuracy in percent on ImageNet-1k of the patch tokens of MAE, ViT-B"


@dataclass(frozen=True)
class Variant:
    """`depth` linear layers with `activation` between them ("" with one), behind self-attention or not."""

    depth: int
    activation: str
    accuracy: float
    self_attention: bool = False


TABLE_5 = (
    Variant(1, "", 71.6),
    Variant(2, "ReLU", 71.7),
    Variant(3, "ReLU", 71.5),
    Variant(4, "ReLU", 71.6),
    Variant(2, "GELU", 71.6),
    Variant(3, "GELU", 71.6),
    Variant(4, "GELU", 71.5),
    Variant(2, "Tanh", 68.7),
    Variant(3, "Tanh", 66.7),
    Variant(4, "Tanh", 66.7),
)

# SA-AbMILP was trained with SGD, the others with LARS; depth and activation behind its self-attention are not printed.
TABLE_3_V1 = (
    Variant(2, "Tanh", 68.70),
    Variant(2, "ReLU", 71.65),
    Variant(1, "", 71.58),
    Variant(0, "", 74.83, self_attention=True),
)
