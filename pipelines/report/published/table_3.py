"""Table 3 of the paper's second version: how evenly [cls] looks at the patches."""

import math

SOURCE = (
    "M. Przewięźlikowski, R. Balestriero, W. Jasiński, M. Śmieja, B. Zieliński: Beyond [cls]: Exploring the true potential of "
    "Masked Image Modeling representations, arXiv:2412.03215v2, Table 3"
)
WHAT = (
    "entropy of the attention of [cls] to patches, averaged over blocks, nats, of ViTs with 196 patches (16 × 16 of 224 × 224)"
)
N_TOKENS = 196
CEILING = math.log(N_TOKENS)  # 5.28, as printed for the encoders without [cls]

# family, encoder, entropy; None for an encoder without [cls], whose patches are averaged
TABLE_3: tuple[tuple[str, str, float | None], ...] = (
    ("masked image modelling", "MAE", 5.03),
    ("masked image modelling", "SimMIM", 4.96),
    ("masked image modelling", "BEiT-v2", 4.89),
    ("masked image modelling", "I-JEPA", None),
    ("masked image modelling", "CAPI", None),
    ("joint embedding", "DINO", 4.70),
)
