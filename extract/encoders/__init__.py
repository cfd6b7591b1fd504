"""Encoders by name: the registry, and any model with tokens that timm knows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm

from extract.encoders import (
    beitv2,
    capi,
    convnext,
    dino,
    dinov2,
    dinov3,
    ibot,
    ijepa,
    mae,
    mae_finetuned,
    maskfeat,
    mixer,
    mocov3,
    quickstart,
    simmim,
    supervised,
)
from extract.encoders.encoder import Encoded, Encoder
from extract.encoders.pretrained import Pretrained
from store import BeyondClsError
from store.errors import unknown

ENCODERS: dict[str, Pretrained] = {
    **quickstart.ENCODERS,
    **mae.ENCODERS,
    **mae_finetuned.ENCODERS,
    **simmim.ENCODERS,
    **maskfeat.ENCODERS,
    **beitv2.ENCODERS,
    **ijepa.ENCODERS,
    **capi.ENCODERS,
    **dino.ENCODERS,
    **dinov2.ENCODERS,
    **dinov3.ENCODERS,
    **mocov3.ENCODERS,
    **ibot.ENCODERS,
    **supervised.ENCODERS,
    **convnext.ENCODERS,
    **mixer.ENCODERS,
}


def load_encoder(
    name: str,
    checkpoint: str | Path | None = None,
    random_seed: int | None = None,
    model: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    weights: str | None = None,
) -> Encoder:
    """A frozen encoder.

    Args:
        name: of the registry, of timm, or any name if `model` is given.
        checkpoint: local weights instead of the ones the name stands for.
        random_seed: random weights from this seed instead.
        model: name of the registry or of timm that says what the encoder is; `name` by default.
        arguments: of the architecture, for `timm.create_model` (img_size, …).
        weights: digest that the loaded weights must have; any by default.

    Raises:
        BeyondClsError: unknown name (with the nearest one), missing or unfitting checkpoint, another digest,
            or options that contradict each other.
    """
    if checkpoint is not None and random_seed is not None:
        raise BeyondClsError(
            f"{name} was given a checkpoint ({checkpoint}) and a random seed ({random_seed}); give one of them"
        )
    entry = _entry(model or name)
    loaded = entry.load(checkpoint, random_seed, arguments)
    encoder = Encoder(name, loaded.model, loaded.architecture, entry.transform, entry.block, loaded.assumed, loaded.cls_caution)
    if weights is not None and weights != encoder.weights:
        raise BeyondClsError(
            f"the weights of {name} have digest {encoder.weights}, expected {weights}; "
            "if the new weights are meant, put their digest into params.yaml (encoders) or --weights"
        )
    return encoder


def _entry(name: str) -> Pretrained:
    if name in ENCODERS:
        return ENCODERS[name]
    if not timm.is_model(name):
        raise BeyondClsError(unknown("encoder", name, [*ENCODERS, *timm_names()], "Names of timm's ViTs count too"))
    return Pretrained(name, f"timm/{name}", "see timm")


def timm_names(pretrained: bool = False) -> list[str]:
    """Names of timm's models that have tokens; with their tags those whose weights its hub has, if `pretrained`."""
    return timm.list_models(["vit_*", "deit*", "beit*", "eva*", "convnext*", "mixer*"], pretrained=pretrained)


__all__ = ["ENCODERS", "Encoded", "Encoder", "Pretrained", "load_encoder", "timm_names"]
