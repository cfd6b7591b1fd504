"""A ViT-S that fills in masked patches; its authors' file names tensors in its own way and holds the decoder."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from extract.encoders.pretrained import IMAGENET, MASKED, Pretrained
from extract.encoders.published import Vit
from extract.encoders.weights import drop_prefixes, unwrapped

RENAMED = {
    "encoder.": "",
    "class_token": "cls_token",
    "positions": "pos_embed",
    "patchify.": "patch_embed.proj.",
    "layers.": "blocks.",
    "ln_1.": "norm1.",
    "attention.in.": "attn.qkv.",
    "attention.out.": "attn.proj.",
    "ln_2.": "norm2.",
    "ffn.0.": "mlp.fc1.",
    "ffn.2.": "mlp.fc2.",
    "ln_final.": "norm.",
}


def convert(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The file holds `network`: `encoder.*` and `decoder.*`."""
    state = drop_prefixes(unwrapped(content, ("network",)), "decoder.", "encoder.mask")
    for old, new in RENAMED.items():
        state = {name.replace(old, new): value for name, value in state.items()}
    return state


PUBLISHED = Vit(
    384,
    12,
    6,
    at="network/encoder.",
    names={
        "cls": "class_token",
        "positions": "positions",
        "patches": "patchify",
        "block": "layers.{}.",
        "norm1": "ln_1",
        "qkv": "attention.in",
        "proj": "attention.out",
        "norm2": "ln_2",
        "fc1": "ffn.0",
        "fc2": "ffn.2",
        "norm": "ln_final",
    },
    dropped=("network/encoder.mask", "network/decoder.weight"),
)
ENCODERS = {
    "newcomer-s16": Pretrained(
        "vit_small_patch16_224",
        "see https://example.org/newcomer",
        "MIT",
        convert=convert,
        transform=IMAGENET,
        labels=False,
        family=MASKED,
        signs=("encoder.layers.",),
        published=(PUBLISHED,),
    ),
}
