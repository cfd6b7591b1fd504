"""MoCo v3 (Chen et al. 2021, arXiv 2104.02057): contrastive learning with a momentum encoder."""

from typing import Any

from extract.encoders.pretrained import JOINT, Pretrained
from extract.encoders.weights import Content, State, names_in, unwrapped
from store import BeyondClsError

PARALLEL, BASE, MOMENTUM = "module.", "base_encoder.", "momentum_encoder."


def convert(content: Content) -> State:
    """The official files hold three networks; the encoder is `base_encoder`, whose projection head is an MLP.

    Its fixed sin-cos positions are in the file as well. Checkpoints of the linear classifier hold the encoder alone, in a
    parallel module. Other ViTs would fit, and run with a number of attention heads that only these encoders have.
    """
    names = [name.removeprefix(PARALLEL) for name in names_in(content)]
    if not any(name.startswith(BASE) for name in names):
        if any(name.startswith(MOMENTUM) for name in names):
            raise BeyondClsError(
                f"it holds `{MOMENTUM}*` without `{BASE}*`, expected MoCo v3's base encoder, which the momentum encoder only "
                "follows; give the authors' file, which has both"
            )
        if not any(name.startswith(PARALLEL) for name in names_in(content)):
            raise BeyondClsError(
                f"no name in it begins with `{BASE}` or `{PARALLEL}`, as in files of MoCo v3, so it may be any ViT's, and no "
                "tensor shows the number of attention heads; give the authors' file, or, if this is its encoder, put the "
                f"prefix back: torch.save({{'{BASE}' + name: x for name, x in state.items()}}, 'mocov3.pth')"
            )
    return unwrapped(content, prefixes=(PARALLEL, BASE), dropped=("head.",))


def _mocov3(model: str, size: str, **arguments: Any) -> Pretrained:
    # Transformed as every encoder is in the paper's code. MoCo v3's own linear evaluation resizes bilinearly (torchvision's
    # default) instead of bicubically, to the same 256 pixels: --interpolation bilinear.
    weights = f"https://dl.fbaipublicfiles.com/moco-v3/vit-{size}-300ep/vit-{size}-300ep.pth.tar"
    return Pretrained(model, weights, "CC-BY-NC-4.0", arguments, convert=convert, signs=(BASE, MOMENTUM), family=JOINT)


ENCODERS = {
    "mocov3-s16": _mocov3("vit_small_patch16_224", "s", num_heads=12),  # twice those of other ViT-S
    "mocov3-b16": _mocov3("vit_base_patch16_224", "b"),
}
