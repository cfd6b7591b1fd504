"""Table 7 (v2) of the paper: AbMILP and attentive probing (AP)."""

from dataclasses import dataclass

SOURCE = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215v2, Table 7"
)
WHAT = "top-1 accuracy in percent on ImageNet-1k"


@dataclass(frozen=True)
class Published:
    """A row of Table 7."""

    encoder: str
    vit: str
    abmilp: float
    ap_1: float
    ap_12: float


TABLE_7 = (
    Published("MAE", "ViT-S", 54.4, 53.6, 63.9),
    Published("MAE", "ViT-B", 71.6, 71.4, 75.4),
    Published("MAE", "ViT-L", 77.4, 77.6, 79.7),
    Published("MAE", "ViT-H", 78.1, 78.3, 80.0),
    Published("BEiT-v2", "ViT-B", 80.9, 81.0, 81.8),
    Published("I-JEPA", "ViT-H", 79.2, 79.5, 79.7),
    Published("CAPI", "ViT-L", 82.4, 81.6, 82.7),
)
