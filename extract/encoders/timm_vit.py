"""Any ViT of timm: by name with weights from the hub, from a local checkpoint, or randomly initialised."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from extract.encoders.weights import load_strictly, read_checkpoint
from store import BeyondClsError


def timm_vit(
    model: str,
    checkpoint: str | Path | None = None,
    random_seed: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """A ViT without classification head, and the description of its architecture.

    Args:
        model: timm name, with pretraining tag if hub weights are wanted (`vit_base_patch16_224.mae`).
        checkpoint: local weights, loaded strictly; the hub's otherwise.
        random_seed: random weights from this seed instead.
        arguments: for `timm.create_model` (img_size, embed_dim, …).

    Raises:
        BeyondClsError: the checkpoint does not fit, or the hub cannot be reached or has no weights for this name.
    """
    arguments = {"num_classes": 0, **(arguments or {})}
    described = {"timm": model.split(".")[0], **arguments}
    if random_seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_seed)
            return timm.create_model(model, pretrained=False, **arguments), described
    if checkpoint is not None:
        state = read_checkpoint(Path(checkpoint))
        vit = timm.create_model(model, pretrained=False, **arguments)
        load_strictly(vit, state, f"{checkpoint} (for {model})")
        return vit, described
    try:
        return timm.create_model(model, pretrained=True, **arguments), described
    except Exception as error:  # the hub's client raises many kinds; all mean that there are no weights
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BeyondClsError(
            f"no weights for {model!r} from the hub ({reason}); check the name and the connection, or give --checkpoint FILE"
        ) from error
