"""Table 1 of the paper: linear probes on ImageNet-1k."""

from dataclasses import dataclass

SOURCE = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215v1, Table 1"
)
WHAT = "top-1 accuracy in percent of linear probes on ImageNet-1k, mean over 3 seeds"


@dataclass(frozen=True)
class Published:
    """A row of Table 1; `cls` is None for an encoder without [cls]."""

    family: str
    encoder: str
    vit: str
    average: float
    cls: float | None
    abmilp: float

    @property
    def gain(self) -> float | None:
        """AbMILP − [cls], points; computed here, not printed in the paper."""
        return None if self.cls is None else round(self.abmilp - self.cls, 1)


_MIM, _JEA, _LABELS = "masked image modelling", "joint embedding", "trained or fine-tuned with labels"

TABLE_1 = (
    Published(_MIM, "MAE", "ViT-S", 47.1, 47.4, 54.4),
    Published(_MIM, "MAE", "ViT-B", 65.8, 67.8, 71.6),
    Published(_MIM, "MAE", "ViT-L", 73.0, 75.8, 77.4),
    Published(_MIM, "MAE", "ViT-H", 73.8, 77.0, 78.1),
    Published(_MIM, "SimMIM", "ViT-B", 54.3, 51.5, 62.8),
    Published(_MIM, "MaskFeat", "ViT-B", 56.9, 62.9, 66.6),
    Published(_MIM, "BEiT-v2", "ViT-B", 78.5, 78.9, 80.9),
    Published(_MIM, "I-JEPA", "ViT-H", 77.7, None, 79.2),
    Published(_JEA, "DINO", "ViT-B", 71.1, 76.6, 74.7),
    Published(_JEA, "MoCo-v3", "ViT-B", 71.1, 75.1, 75.1),
    Published(_JEA, "iBOT", "ViT-B", 75.0, 77.8, 77.9),
    Published(_LABELS, "MAE (fine-tuned)", "ViT-B", 76.6, 80.0, 79.1),
    Published(_LABELS, "Supervised", "ViT-B", 80.5, 80.6, 80.6),
)
