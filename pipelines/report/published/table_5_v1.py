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
# What tells the published detector from ours: the part, there, here. Of what the paper does not say of its own, iBOT's code
# (evaluation/object_detection, vit_base_giou_4conv1f_coco_3x) is taken to hold.
DIFFERENCES = (
    ("encoder", "frozen; iBOT's own trains it, with a learning rate that falls from block to block", "frozen"),
    ("frame", "proportions kept, short side up to 800 pixels, long side up to 1,333", "as extracted: one size for all images"),
    ("padding", "right and below, masked out of anchors", "of --crop-mode border: around, and seen as image by proposals"),
    ("augmentation", "short sides of 480 to 800 pixels, crops and flips, drawn anew in each epoch", "stored views, if any"),
    ("pyramid", "iBOT's reads blocks 3, 5, 7 and 11; the paper the last block", "simple feature pyramid of one block"),
    (
        "proposals",
        "of all levels, 2,000 an image, with smooth L1",
        "torchvision's, 2,000 an image (`proposals`), with smooth L1",
    ),
    (
        "regions",
        "cascade of three in the code, Mask R-CNN in the text; 4 convolutions, GIoU",
        "one stage; 2 linear layers, smooth L1",
    ),
    ("schedule", "36 epochs, a tenth after 27 and after 33", "the same with --preset v1"),
    ("optimiser", "AdamW, 1e-4, weight decay 0.05, 16 images a step", "the same with --preset v1"),
    ("precision", "mixed", "float32"),
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
