"""Published results, for reference beside our own."""

from dataclasses import dataclass

SOURCE = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215v2, Table 8"
)
WHAT = "MaxBoxAccV2 in percent on the ImageNet-1k validation images; “Selective Aggregation” there is AbMILP here"


@dataclass(frozen=True)
class Published:
    """A row of Table 8 of v2."""

    encoder: str
    vit: str
    cls: float
    abmilp: float


TABLE_8 = (
    Published("MAE", "ViT-B", 53.3, 59.4),
    Published("BEiT-v2", "ViT-B", 44.3, 65.1),
)
