"""Table 5 of the paper's first version: objects and their masks, detected from frozen encoders."""

from dataclasses import dataclass

SOURCE = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215v1, Table 5"
)
WHAT = (
    "average precision of boxes and masks of large, medium and small objects of COCO, in percent (printed as fractions): Mask "
    "R-CNN with iBOT's code and settings, trained on the patch tokens of the last block of a frozen ViT-B"
)


@dataclass(frozen=True)
class Published:
    """A row of Table 5 of v1, percent: boxes, then masks, of large, medium and small objects."""

    encoder: str
    box: tuple[float, float, float]
    mask: tuple[float, float, float]


TABLE_5_V1 = (
    Published("DINO", (47.2, 35.3, 20.5), (46.7, 31.2, 14.9)),
    Published("MAE", (41.3, 32.0, 18.6), (41.7, 29.2, 14.0)),
    Published("MAE (fine-tuned)", (43.3, 30.8, 17.2), (42.5, 27.2, 12.2)),
)
