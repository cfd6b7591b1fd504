"""A ViT-S that fills in masked patches; its authors' file holds the decoder, too."""

from functools import partial

from extract.encoders.pretrained import MASKED, Pretrained
from extract.encoders.weights import unwrapped

ENCODERS = {
    "newcomer-s16": Pretrained(
        "vit_small_patch16_224",
        "see https://example.org/newcomer",
        "MIT",
        # The file holds `network`: `encoder.*` and `decoder.*`.
        convert=partial(unwrapped, wrappers=("network",), dropped=("decoder.",), renamed={r"^encoder\.": ""}),
        family=MASKED,
        signs=("encoder.blocks.",),
    ),
}
