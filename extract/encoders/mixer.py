"""MLP-Mixer (Tolstikhin et al. 2021, arXiv 2105.01601): patch tokens mixed by fixed weights, trained with labels."""

from extract.encoders.pretrained import IMAGENET, LABELS, Pretrained
from extract.encoders.published import Vit

HALVES = {**IMAGENET, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # pixels from -1 to 1
NAMES = {
    "cls": None,
    "positions": None,
    "patches": "stem.proj",
    "qkv": None,
    "proj": None,
    "across1": "mlp_tokens.fc1",
    "across2": "mlp_tokens.fc2",
    "fc1": "mlp_channels.fc1",
    "fc2": "mlp_channels.fc2",
}
# Its authors published arrays of JAX; those of timm's hub are the same under torch's names.
ENCODERS = {
    "mixer-b16": Pretrained(
        "mixer_b16_224",
        "timm/mixer_b16_224.goog_in21k_ft_in1k",
        "Apache-2.0",
        transform=HALVES,
        family=LABELS,
        published=(Vit(768, 12, 0, names=NAMES, dropped=("head.weight", "head.bias"), sizes={"side": "img_size"}),),
    ),
}
