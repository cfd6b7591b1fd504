"""Encoders by name: the registry, and any ViT that timm knows."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import timm

from extract.encoders.encoder import Encoded, Encoder
from extract.encoders.quickstart import quickstart
from extract.encoders.timm_vit import timm_vit
from store import BeyondClsError
from store.errors import unknown

# name -> function(checkpoint, random_seed) that gives the model and the description of its architecture
ENCODERS = {
    "quickstart-mae": partial(quickstart, "mae"),
    "quickstart-dino": partial(quickstart, "dino"),
    "quickstart-random": partial(quickstart, "random"),
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
        model: timm name of the architecture; `name` by default.
        arguments: for `timm.create_model` (img_size, …).
        weights: digest that the loaded weights must have; any by default.

    Raises:
        BeyondClsError: unknown name (with the nearest one), missing or unfitting checkpoint, another digest,
            or options that contradict each other.
    """
    if checkpoint is not None and random_seed is not None:
        raise BeyondClsError(
            f"{name} was given a checkpoint ({checkpoint}) and a random seed ({random_seed}); give one of them"
        )
    if name in ENCODERS and model is None:
        if arguments:
            raise BeyondClsError(
                f"{name} has its architecture, but was given arguments {dict(arguments)}; give a model for them"
            )
        vit, described = ENCODERS[name](checkpoint=checkpoint, random_seed=random_seed)
    else:
        architecture = model or name
        if not timm.is_model(architecture):
            known = [*ENCODERS, *timm.list_models(["vit_*", "deit*", "beit*", "eva*"])]
            raise BeyondClsError(unknown("encoder", architecture, known, "Names of timm's ViTs count too"))
        vit, described = timm_vit(architecture, checkpoint, random_seed, arguments)
    encoder = Encoder(name, vit, described)
    if weights is not None and weights != encoder.weights:
        raise BeyondClsError(
            f"the weights of {name} have digest {encoder.weights}, expected {weights}; "
            "if the new weights are meant, put their digest into params.yaml (encoders) or --weights"
        )
    return encoder


__all__ = ["ENCODERS", "Encoded", "Encoder", "load_encoder"]
