"""MLP-Mixer (Tolstikhin et al. 2021, arXiv 2105.01601): patch tokens mixed by fixed weights, trained with labels."""

from extract.encoders.pretrained import HALVES, LABELS, Pretrained

# Its authors published arrays of JAX; those of timm's hub are the same under torch's names.
ENCODERS = {
    "mixer-b16": Pretrained(
        "mixer_b16_224", "timm/mixer_b16_224.goog_in21k_ft_in1k", "Apache-2.0", transform=HALVES, family=LABELS
    ),
}
