"""Table 3 of the paper's second version: how evenly [cls] looks at the patches."""

import math
from dataclasses import dataclass

SOURCE = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215v2, Table 3"
)
WHAT = "entropy of the attention of [cls] to patches, averaged over blocks, nats"


@dataclass(frozen=True)
class Published:
    """A row of Table 3 of v2.

    Attributes:
        entropy: as printed.
        n_tokens: T of images of 224 × 224 pixels: 14 × 14 patches of 16 pixels, or 16 × 16 of 14. Not printed; of the
            published ViT-B/16, ViT-H/14 (I-JEPA) and ViT-L/14 (CAPI).
        uniform: it has no [cls], so its patches are averaged.
    """

    family: str
    encoder: str
    entropy: float
    n_tokens: int
    uniform: bool = False

    @property
    def limit(self) -> float:
        """ln T, nats."""
        return math.log(self.n_tokens)


_MIM, _JEA = "masked image modelling", "joint embedding"

TABLE_3 = (
    Published(_MIM, "MAE", 5.03, 196),
    Published(_MIM, "SimMIM", 4.96, 196),
    Published(_MIM, "BEiT-v2", 4.89, 196),
    Published(_MIM, "I-JEPA", 5.28, 256, uniform=True),
    Published(_MIM, "CAPI", 5.28, 256, uniform=True),
    Published(_JEA, "DINO", 4.70, 196),
)
