"""Published results of selection without training, for reference beside our own."""

from dataclasses import dataclass

SOURCE = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215v2, Table 6 (Table 4 of v1)"
)
WHAT = "patch tokens of MAE ViT-B on ImageNet-1k: top-1 accuracy in percent, entropy of the weights over 196 patches in nats"


@dataclass(frozen=True)
class Published:
    """A row of Table 6; `aggregator` is what it is called here, with its options."""

    approach: str
    aggregator: str
    top1: float
    entropy: float


TABLE_6 = (
    Published("average MAE [cls] token attention", "cls-attention", 67.8, 5.14),
    Published("lowest-entropy MAE [cls] token attention", "lowest-entropy-head", 66.3, 4.77),
    Published("MAE central patch token attention", "central-attention", 65.2, 4.70),
    Published("average DINO [cls] token attention", "cls-attention, of joined", 70.9, 4.89),
    Published("AbMILP", "abmilp", 71.6, 4.80),
)
