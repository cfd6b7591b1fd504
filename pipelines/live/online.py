"""A probe on its live encoder: from images to logits, and to maps of where the head looks."""

import copy
import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from extract.encoders import ENCODERS, Encoder, load_encoder
from extract.layouts import arrays_by_name
from extract.registers import N_REGISTERS, NEURONS
from extract.requests import checked_blocks
from extract.transform import as_options, differing_values, options_of, values_text
from pipelines.live.segmenter import OnEncoders, Segmenter
from probe.head import TOKENS, Head
from probe.saved import load_with, task_of
from probe.segmentation.patch_head import TASK as SEGMENTATION
from probe.segmentation.patch_head import load_patch_head
from probe.sources import JOINED, OF_BLOCKS
from store import BeyondClsError
from store.format.layout import ArrayName, kind_of


def online(
    encoder: Encoder | str,
    probe: str | Path | Head,
    *,
    description: Mapping[str, Any] | None = None,
    joined: Encoder | str | None = None,
    own: str | None = None,
    **options: Any,
) -> Any:
    """A probe on its encoder, as a module from images to logits, without a store in between.

    An `Online`; a `Segmenter` for a head that `beyondcls segment` trained, which gives logits of patches or pixels.

    Example::

        model = online("quickstart-mae", "probes/cifar10/quickstart-mae/abmilp/trained/seed0")
        logits, maps = model(*model.prepare(["cat.jpg", "dog.jpg"]))  # [2, K], [2, h, w]

    Args:
        encoder: the one that the probe was trained on, or its name for `load_encoder`.
        probe: path of a trained probe (see `load_probe`), or a head.
        description: of a head that is given as such: what its JSON file would hold ("encoder_weights", "block", "classes", …).
            Without one, `patch`, `cls`, `attention/cls` are of the block at which the encoder is read, and nothing is compared.
        joined: the second encoder, for heads that read `joined/…`.
        own: FILE.py:CLASS of a custom aggregator, as for `load_probe`.
        options: of `load_encoder` (checkpoint, mean, crop_mode, …), for an encoder that is given by its name. By default it
            sees of an image what the probe records.

    Raises:
        BeyondClsError: no readable probe; another encoder than the one that it was trained on (weights, architecture,
            transform), or one that lacks what the head reads; a second encoder that is missing or not read.
    """
    if isinstance(probe, Head):
        head = probe
        if own is not None:
            raise BeyondClsError(f"own is {own!r}, but the probe is a head already; leave one of them out")
    elif description is not None:
        raise BeyondClsError(f"{probe} has its own description; leave out description")
    elif own is None and task_of(probe) == SEGMENTATION:
        for_patches, about = load_patch_head(probe)
        encoder = load_recorded(encoder, about, options)
        check_encoder(encoder, about)
        block, names = described_block(encoder, about), described_classes(about, for_patches.n_classes)
        if names is None:
            raise BeyondClsError(f"the head {probe} has no names of classes; train it again: beyondcls segment")
        return Segmenter(encoder, for_patches, {**about, "block": block, "classes": names})
    else:
        head, description = load_with(probe, own)
    about = description or {}
    second = None if joined is None else load_recorded(joined, about.get("joined_encoder") or {}, {})
    return Online(load_recorded(encoder, about, options), head, description, second)


def load_recorded(encoder: Encoder | str, recorded: Mapping[str, Any], options: Mapping[str, Any]) -> Encoder:
    """An encoder; by its name it is loaded as a probe records it, and only then there may be options."""
    if isinstance(encoder, str):
        return load_as_recorded(encoder, recorded, options)
    if options:
        raise BeyondClsError(f"{encoder.name} is loaded already; give {', '.join(options)} to load_encoder, which loads it")
    return encoder


def load_as_recorded(name: str, recorded: Mapping[str, Any], options: Mapping[str, Any]) -> Encoder:
    """An encoder that sees what a probe records of its own (`transform`), unless `options` of `load_encoder` say otherwise.

    Raises:
        BeyondClsError: as `load_encoder`; or it is of a package that is not installed.
    """
    transform = recorded.get("transform")
    try:
        architecture = json.loads(recorded["architecture"])
    except (KeyError, ValueError, TypeError, RecursionError):
        architecture = {}
    architecture = architecture if isinstance(architecture, Mapping) else {}
    if (model := architecture.get("model")) == (options.get("model") or name):
        ENCODERS.check_package(model, architecture.get("package"), "the probe")
    registers = {option: architecture[option] for option in (NEURONS, N_REGISTERS) if option in architecture}
    return load_encoder(name, **{**(options_of(transform) if isinstance(transform, Mapping) else {}), **registers, **options})


class Online(OnEncoders):
    """Images to logits and to a map of the head's weights over the patches. Frozen, always in evaluation mode.

    The encoder runs once an image and gives the kinds of features that the head reads, no others; tokens are float32. Encoders
    are shared with the caller, the head is copied. Arguments and errors are those of `online`.

    Attributes:
        grid: rows and columns of the map; None if there is no map: the aggregator has no weights, or not one for each patch, or
            the patches form no grid.
        classes: names by label, or None.
        multilabel: whether a class is decided for itself (sigmoid), or one of all (softmax).
    """

    def __init__(
        self, encoder: Encoder, head: Head, description: Mapping[str, Any] | None = None, joined: Encoder | None = None
    ):
        super().__init__(encoder, *([] if joined is None else [joined]))
        self.head, self.joined = copy.deepcopy(head), joined
        self.model, self.joined_model = encoder.model, None if joined is None else joined.model  # so that `to` moves them
        self.train()
        about, reads = description or {}, head.aggregator.reads
        of_second = about.get("joined_encoder") or {}
        second = [kind for kind in reads if kind.startswith(JOINED)]
        if second and joined is None:
            name = f" ({of_second['encoder']!r})" if "encoder" in of_second else ""
            raise BeyondClsError(
                f"this head reads {second[0]!r}, of a second encoder{name}; give it: online(…, joined=…) or --joined-encoder"
            )
        if joined is not None and not second:
            raise BeyondClsError(f"this head reads {', '.join(reads)}, nothing of a second encoder; leave out {joined.name}")
        self._names = {}
        for one, recorded, ordinal in zip(self.encoders, (about, of_second), ("", "second "), strict=False):
            blocks = {"block": one.block, "attention_block": one.block}
            if description is not None:
                check_encoder(one, recorded, ordinal)
                blocks = {name: _whole_number(recorded, name) for name in blocks}
            self._names |= {kind: _array_name(kind, **blocks) for kind in reads if (kind in second) == bool(ordinal)}
        self.classes, self.multilabel = described_classes(about, self.n_classes), bool(about.get("multilabel", False))
        self.to(encoder.device)
        features = self.features(*self.black())
        for kind, values in features.items():
            if kind_of(kind) in TOKENS and values.shape[-1] != head.aggregator.dim:
                raise BeyondClsError(
                    f"{kind} of {encoder.name} is {values.shape[-1]} wide, the head expects {head.aggregator.dim}; "
                    "load the encoder that it was trained on"
                )
        n_patches, expected = _n_patches(features), about.get("n_patches")
        if n_patches is not None and expected not in (None, n_patches):
            raise BeyondClsError(
                f"{encoder.name} gives {n_patches} patches an image, the probe was trained on {expected}; "
                "load the encoder with the input size of its features"
            )
        with torch.no_grad():
            weights = self.head(features)[1]
        every = n_patches is not None and weights is not None and weights.shape[1] >= n_patches
        self.grid = grid_of(encoder, n_patches or 0) if every else None

    @property
    def n_classes(self) -> int:
        """K."""
        return self.head.classifier.out_features

    @torch.no_grad()
    def forward(
        self, images: Float[Tensor, "B 3 H W"], joined: Float[Tensor, "B 3 H2 W2"] | None = None
    ) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B h w"] | None]:
        """Logits, and the aggregator's weights over the grid of patches.

        Args:
            images: transformed as the encoder expects them (`prepare`), on its device.
            joined: the same images as the second encoder expects them; `images`, if both expect the same.

        Returns:
            Logits, and weights [B, h, w] that sum to 1, or to 1 minus the weight of [cls] where that is weighted too; None
            without `grid`.

        Raises:
            BeyondClsError: images of another size, or of one encoder where two are needed.
        """
        logits, weights = self.head(self.features(images, joined))
        if weights is None or self.grid is None:
            return logits, None
        return logits, weights[:, -math.prod(self.grid) :].unflatten(1, self.grid)

    @torch.no_grad()
    def features(self, images: Float[Tensor, "B 3 H W"], joined: Float[Tensor, "B 3 H2 W2"] | None = None) -> dict[str, Tensor]:
        """The features of the images that the head reads, by kind, before any rounding that a store applies.

        Raises:
            BeyondClsError: as `forward`.
        """
        if joined is None and self.joined is not None:
            if self.joined.described_transform != self.encoder.described_transform:
                raise BeyondClsError(
                    f"{self.joined.name} takes images otherwise than {self.encoder.name}; give both: model(*model.prepare(…))"
                )
            joined = images
        read = self._read(self.encoder, images, [kind for kind in self._names if not kind.startswith(JOINED)])
        if self.joined is not None and joined is not None:
            read |= self._read(self.joined, joined, [kind for kind in self._names if kind.startswith(JOINED)])
        return read

    def _read(self, encoder: Encoder, images: Tensor, kinds: Sequence[str]) -> dict[str, Tensor]:
        expected = tuple(encoder.config["input_size"])
        if images.shape[1:] != expected:
            raise BeyondClsError(
                f"images are {list(images.shape)}, expected [B, {', '.join(map(str, expected))}] for {encoder.name}; "
                "prepare(…) makes them"
            )
        names = [self._names[kind] for kind in kinds]
        token_blocks, maps, vectors = (_named_blocks(kinds, names, encoder) for kinds in (TOKENS, ("attention",), ("average",)))
        encoded = encoder(images, token_blocks, maps=maps, vectors=vectors, pooled="pooled" in names)
        arrays = {name.removesuffix("/view0"): values for name, values in arrays_by_name(encoded, 0).items()}
        for kind, name in zip(kinds, names, strict=True):
            if name not in arrays:
                raise BeyondClsError(
                    f"this head reads {kind!r}, but {encoder.name} has no {name}; "
                    f"it has: {', '.join(sorted(arrays)) or 'nothing'}"
                )
        return {kind: arrays[name].float() for kind, name in zip(kinds, names, strict=True)}


def check_encoder(encoder: Encoder, recorded: Mapping[str, Any], ordinal: str = "") -> None:
    """Check that a probe was trained on features of this encoder.

    Args:
        recorded: "encoder", its name; "encoder_weights", its digest; "architecture" and "transform".
        ordinal: "second " of a joined one.

    Raises:
        BeyondClsError: it was another one, or the probe does not record it.
    """
    for field in ("encoder_weights", "architecture", "transform"):
        if field not in recorded:
            raise BeyondClsError(f"the probe does not record {field} of its {ordinal}encoder; train it again")
    name = recorded.get("encoder")
    remedy = f"load {name!r} as it was extracted, or train a probe on features of {encoder.name!r}"
    recorded_transform = recorded["transform"] if isinstance(recorded["transform"], Mapping) else {}
    names = differing_values(recorded_transform, encoder.described_transform)
    # Positions, which are among the weights, differ with the size of images.
    size = re.compile(r'"img_size": (\d+|\[[\d, ]*\]),? ?')
    resized = "input_size" in names and size.sub("", str(recorded["architecture"])) == size.sub("", encoder.architecture)
    if recorded["encoder_weights"] != encoder.weights and not resized:
        raise BeyondClsError(
            f"the probe's {ordinal}encoder, {name!r}, has weights {recorded['encoder_weights']}; "
            f"{encoder.name!r} has {encoder.weights}; {remedy}"
        )
    if names:
        needed = as_options(recorded_transform, names)
        raise BeyondClsError(
            f"the probe's {ordinal}encoder, {name!r}, sees "
            f"{values_text(recorded_transform, names, encoder.described_transform)}, as {encoder.name!r} does; load it "
            f"{f'with {needed}, or ' if needed else ''}by its name without these options"
        )
    for field, ours in (("architecture", encoder.architecture), ("transform", encoder.described_transform)):
        if recorded[field] != ours:
            raise BeyondClsError(
                f"the probe's {ordinal}encoder, {name!r}, has {field} {recorded[field]}; {encoder.name!r} has {ours}; {remedy}"
            )


def grid_of(encoder: Encoder, n_patches: int) -> tuple[int, int] | None:
    """Rows and columns of the patches; None if they are unknown."""
    grid = getattr(getattr(encoder.model, "patch_embed", None), "grid_size", None)
    if grid is not None and math.prod(grid) == n_patches:
        return int(grid[0]), int(grid[1])
    side = math.isqrt(n_patches)
    return (side, side) if side * side == n_patches else None


def _named_blocks(kinds: Container[str], names: Sequence[str], encoder: Encoder) -> tuple[int, ...]:
    """Blocks that names of these kinds mention."""
    blocks = [name.block for name in map(ArrayName.parse, names) if name.kind in kinds and name.block is not None]
    return checked_blocks(blocks, encoder.n_blocks) if blocks else ()


def _array_name(kind: str, block: int, attention_block: int) -> str:
    """The name of a kind in the store of its encoder, without its view."""
    name = ArrayName.parse(kind.removeprefix(JOINED))
    if name.block is None and (name.kind == "attention" or str(name) in OF_BLOCKS):
        name = replace(name, block=attention_block if name.kind == "attention" else block)
    return str(name)


def _n_patches(features: Mapping[str, Tensor]) -> int | None:
    """T, from patch tokens or attention maps; None if there are neither."""
    tokens = (values.shape[1] for kind, values in features.items() if kind_of(kind) == "patch")
    rows = (values.shape[-1] for kind, values in features.items() if kind.startswith("attention/"))
    return next(tokens, None) or next(rows, None)


def _whole_number(about: Mapping[str, Any], name: str) -> int:
    value = about.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BeyondClsError(f"the probe's {name} is {value!r}, expected a number from 0 on; train it again")
    return value


def described_block(encoder: Encoder, about: Mapping[str, Any]) -> int:
    """The block whose tokens a head for patches, or a detector, reads.

    Raises:
        BeyondClsError: it is not recorded, or the encoder has no such block.
    """
    (block,) = checked_blocks([_whole_number(about, "block")], encoder.n_blocks)
    return block


def described_classes(about: Mapping[str, Any], n_classes: int) -> tuple[str, ...] | None:
    """Names of the classes.

    Raises:
        BeyondClsError: the number of names is not that of logits.
    """
    names = about.get("classes")
    if names is None:
        return None
    if not isinstance(names, list | tuple) or len(names) != n_classes or not all(isinstance(name, str) for name in names):
        n = len(names) if isinstance(names, list | tuple) else f"{type(names).__name__}, not a list of"
        raise BeyondClsError(f"the probe has {n} names of classes, expected {n_classes}, one for each logit; train it again")
    return tuple(names)
