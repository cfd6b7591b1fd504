"""A ViT-S that fills in masked patches; its authors' file names tensors in its own way and holds the decoder."""

from functools import partial

from extract.encoders.pretrained import MASKED, Pretrained
from extract.encoders.weights import unwrapped

RENAMED = {
    r"^encoder\.": "",
    "class_token": "cls_token",
    "positions": "pos_embed",
    r"patchify\.": "patch_embed.proj.",
    r"layers\.": "blocks.",
    r"ln_([12])\.": r"norm\1.",
    r"attention\.in\.": "attn.qkv.",
    r"attention\.out\.": "attn.proj.",
    r"ffn\.0\.": "mlp.fc1.",
    r"ffn\.2\.": "mlp.fc2.",
    r"ln_final\.": "norm.",
}
ENCODERS = {
    "newcomer-s16": Pretrained(
        "vit_small_patch16_224",
        "see https://example.org/newcomer",
        "MIT",
        # The file holds `network`: `encoder.*` and `decoder.*`.
        convert=partial(unwrapped, wrappers=("network",), dropped=("decoder.", "encoder.mask"), renamed=RENAMED),
        family=MASKED,
        signs=("encoder.layers.",),
    ),
}
