"""ConvNeXt (Liu et al. 2022, arXiv 2201.03545): a convolutional network trained with labels. Its four stages are blocks."""

from functools import partial

from extract.encoders.pretrained import LABELS, Pretrained
from extract.encoders.weights import unwrapped

# The official files hold `model`; those of timm's hub have timm's names already.
RENAMED = {
    r"^downsample_layers\.0\.": "stem.",
    r"^downsample_layers\.(\d)\.": r"stages.\1.downsample.",
    r"^stages\.(\d)\.(\d+)\.dwconv\.": r"stages.\1.blocks.\2.conv_dw.",
    r"^stages\.(\d)\.(\d+)\.pwconv(\d)\.": r"stages.\1.blocks.\2.mlp.fc\3.",
    r"^stages\.(\d)\.(\d+)\.": r"stages.\1.blocks.\2.",
    r"^norm\.": "head.norm.",  # after pooling
}


def _convnext(size: str) -> Pretrained:
    weights = f"timm/convnext_{size}.fb_in1k"
    return Pretrained(f"convnext_{size}", weights, "MIT", convert=partial(unwrapped, renamed=RENAMED), family=LABELS)


ENCODERS = {
    "convnext-b": _convnext("base"),
    "convnext-t": _convnext("tiny"),
}
