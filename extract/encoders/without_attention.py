"""timm's models without attention, with the attributes that an `Encoder` expects of its model."""

from timm.models.convnext import ConvNeXt
from timm.models.mlp_mixer import MlpMixer
from torch import nn

# What timm names differently: `blocks` give tokens or feature maps, `patch_embed` knows the image size.
NAMES: dict[type[nn.Module], dict[str, str]] = {
    ConvNeXt: {"blocks": "stages"},
    MlpMixer: {"patch_embed": "stem"},
}


def with_encoder_attributes(model: nn.Module) -> nn.Module:
    """The same model; one of these kinds also gets attributes for no attention and for tokens that are all patches."""
    for kind, names in NAMES.items():
        if isinstance(model, kind):
            # Beside torch's registry of submodules, so that no tensor gets a second name.
            model.__dict__.update({name: getattr(model, theirs) for name, theirs in names.items()})
            model.__dict__.update(attends=False, num_prefix_tokens=0)
    return model
