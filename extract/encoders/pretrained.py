"""What an encoder is before it is loaded: its architecture, where its weights are published, and how to read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from extract.encoders.download import download
from extract.encoders.weights import load_strictly, read_checkpoint, unwrapped
from extract.encoders.without_attention import described
from store import BeyondClsError

# Resize the shorter side to 256 pixels, keep the central 224 (as the official code does for every encoder).
IMAGENET = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "crop_mode": "center",
}


def timm_model(model: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """A model of timm without classification head, randomly initialised unless pretrained."""
    return described(timm.create_model(model, pretrained=pretrained, **{"num_classes": 0, **arguments}))


@dataclass(frozen=True)
class Pretrained:
    """An encoder that can be had by its name.

    Attributes:
        model: name of the architecture, of timm unless `make` says otherwise.
        weights: where they are published: "timm/NAME" (timm's hub), "https://…" (a file that can be fetched), a path in this
            repository, or, after "see ", the page from which a user has to fetch them.
        licence: of the weights.
        arguments: of the architecture (img_size, …).
        arguments_of: content of the published checkpoint -> arguments that it decides, over those above; for architectures
            that were published in variants.
        make: `make(model, **arguments)` gives the model, randomly initialised.
        convert: content of the published checkpoint -> state dict of that model, which must fit exactly. It drops, by name,
            what is no part of the encoder (decoders, projection heads), and nothing else.
        transform: what differs from the transform that timm knows for the model: mean, std, crop_pct, interpolation, …
        block: whose tokens are read unless the user says otherwise; counted from 0, negative from the end.
        digest: SHA-256 of the published file, hexadecimal, where known.
        seed: random weights from this seed, instead of published ones.
        note: what a user should know, for `beyondcls encoders`.
    """

    model: str
    weights: str
    licence: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    arguments_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    make: Callable[..., nn.Module] = timm_model
    convert: Callable[[Mapping[str, Any]], Mapping[str, Tensor]] = unwrapped
    transform: Mapping[str, Any] = field(default_factory=dict)
    block: int = -1
    digest: str | None = None
    seed: int | None = None
    note: str = ""

    def load(
        self, checkpoint: str | Path | None = None, random_seed: int | None = None, arguments: Mapping[str, Any] | None = None
    ) -> tuple[nn.Module, dict[str, Any]]:
        """The model and the description of its architecture.

        Args:
            checkpoint: local file; the published weights otherwise.
            random_seed: random weights from this seed instead.
            arguments: of the architecture, over those of this entry.

        Raises: BeyondClsError: a checkpoint that does not fit, or published weights that cannot be had.
        """
        given = arguments or {}
        arguments = {**self.arguments, **given}
        if random_seed is None and checkpoint is None:
            random_seed = self.seed
        if random_seed is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(random_seed)
                return self.make(self.model, **arguments), self._described(arguments)
        if checkpoint is None and self.weights.startswith("timm/"):
            return _from_timm(self.weights.removeprefix("timm/"), arguments), self._described(arguments)
        file = Path(checkpoint) if checkpoint is not None else self._published()
        content = read_checkpoint(file)
        try:
            state, found = self.convert(content), self.arguments_of(content)
        except BeyondClsError as error:
            raise BeyondClsError(f"{file}: {error}") from error
        arguments = {**self.arguments, **found, **given}
        model = self.make(self.model, **arguments)
        load_strictly(model, state, f"{file} (for {self.model})")
        return model, self._described(arguments)

    def _described(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model.split(".")[0], **arguments}

    def _published(self) -> Path:
        if self.weights.startswith("see "):
            raise BeyondClsError(
                f"the weights of {self.model} cannot be fetched by a program; get them from {self.weights[4:]} "
                "and give --checkpoint FILE"
            )
        return download(self.weights, self.digest) if "://" in self.weights else Path(self.weights)


def _from_timm(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        return timm_model(name, pretrained=True, **arguments)
    except Exception as error:  # the hub's client raises many kinds; all mean that there are no weights
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BeyondClsError(
            f"no weights for {name!r} from the hub ({reason}); check the name and the connection, or give --checkpoint FILE"
        ) from error
