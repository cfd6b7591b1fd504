"""I-JEPA (Assran et al. 2023, arXiv 2301.08243): predicts a network's output for parts of an image from other parts."""

from extract.encoders.pretrained import MASKED, Pretrained
from extract.encoders.weights import Content, State, shorten, unwrapped
from store import BeyondClsError

ENCODER = "target_encoder"


def convert(content: Content) -> State:
    """The official files hold two networks of this shape; only `target_encoder` sees whole images."""
    if ENCODER not in content:
        raise BeyondClsError(
            f"the checkpoint of I-JEPA has no `{ENCODER}`; it holds {shorten(content) or 'nothing'}. Give the full checkpoint, "
            "as `encoder`, of the same shape, is another network"
        )
    return unwrapped(content, wrappers=(ENCODER,), prefixes=("module.",))


def _ijepa(model: str, file: str) -> Pretrained:
    weights = f"https://dl.fbaipublicfiles.com/ijepa/{file}.pth.tar"
    return Pretrained(model, weights, "CC-BY-NC-4.0", convert=convert, family=MASKED)


# Without [cls].
ENCODERS = {
    "ijepa-h14": _ijepa("vit_huge_patch14_gap_224", "IN1K-vit.h.14-300e"),
    "ijepa-h16-448": _ijepa("vit_huge_patch16_gap_448", "IN1K-vit.h.16-448px-300e"),
    "ijepa-g16": _ijepa("vit_giant_patch16_gap_224", "IN22K-vit.g.16-600e"),  # ImageNet-22K
}
