"""Models that an `Encoder` cannot read, and what to use in their place."""

from torch import nn

from store import BeyondClsError

INSTEAD = "choose a vit_*, deit_*, beit*, eva* or aimv2_* model"
HIERARCHICAL = "it merges patches between its stages, so its blocks have no one grid of patches"
# By the class of timm's model: what keeps it from being read, and what to use. Others lack what a plain ViT has.
REASONS = {
    "Hiera": (HIERARCHICAL, "choose a plain ViT that was trained by masking, such as mae-b16"),
    "HieraDet": (HIERARCHICAL, "choose a plain ViT that was trained by masking, such as mae-b16"),
    "SwinTransformer": (HIERARCHICAL, INSTEAD),
    "SwinTransformerV2": (HIERARCHICAL, INSTEAD),
    "VisionTransformerSAM": (
        "most of its blocks attend within windows, and all give maps with channels last",
        "choose the encoder that it was trained from, mae-b16, mae-l16 or mae-h14",
    ),
    "Qwen3VitClassifier": ("its blocks are in an encoder within it, behind which tokens are merged", INSTEAD),
    "Qwen3VitEncoder": ("its tokens are maps with channels last, and are merged for a language model", INSTEAD),
    "Gemma4VitClassifier": ("its blocks are in an encoder within it", INSTEAD),
    "Gemma4VitEncoder": ("it pools its tokens for a language model", INSTEAD),
}
NEEDED = ("blocks", "num_prefix_tokens", "forward_features")


def check_plain(name: str, model: nn.Module) -> None:
    """Refuse a model whose blocks do not give [cls], registers and one grid of patches.

    Raises:
        BeyondClsError: it is known to be none, or lacks what is needed; the message says what to use.
    """
    kind = type(model).__name__
    if kind in REASONS:
        why, instead = REASONS[kind]
        raise BeyondClsError(f"{name} is not a plain ViT: {kind} is not supported, as {why}; {instead}")
    if getattr(getattr(model, "embeds", None), "cls_token", None) is not None:  # it would be taken for a register
        raise BeyondClsError(
            f"{name} is not a plain ViT: {kind} is not supported, as its [cls] is in a module of its own; choose the model of "
            "timm for images of one size, such as vit_base_patch16_radio_v3 in place of naflexvit_base_patch16_radio_v3"
        )
    for attribute in NEEDED:
        if not hasattr(model, attribute):
            raise BeyondClsError(f"{name} is not a ViT: {kind} has no `{attribute}`; {INSTEAD}")
