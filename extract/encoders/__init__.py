"""Encoders by name: the registry, and any model with tokens that timm knows."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm

from extract.encoders import capi, joint, masked, quickstart, supervised
from extract.encoders.encoder import Encoded, Encoder
from extract.encoders.libraries import OF_HUBS, is_of_library, load_from_library
from extract.encoders.pretrained import AS_FOUND, IMAGENET, Pretrained, TensorChoice, checked_family, cls_caution
from extract.registers import read_neurons
from extract.transform import as_options, checked_transform, differing_values, input_sides, resize_input, values_text
from store import BeyondClsError
from store.errors import BeyondClsWarning, unknown
from store.format.pretraining import UNKNOWN, UNTRAINED, Pretraining
from store.plugins import Registry


def _check_factory(make: object) -> None:
    if not callable(make):
        raise TypeError(
            f"it is {make!r}, expected a function that returns a torch.nn.Module, or what beyondcls.wrap makes of one"
        )


# Those of other packages are functions that make a model.
ENCODERS = Registry[Any]("encoders", _check_factory, timm.is_model) | {
    **quickstart.ENCODERS,
    **masked.ENCODERS,
    **capi.ENCODERS,
    **joint.ENCODERS,
    **supervised.ENCODERS,
}


def load_encoder(
    name: str,
    checkpoint: str | Path | None = None,
    random_seed: int | None = None,
    model: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    weights: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    interpolation: str | None = None,
    input_size: int | str | Sequence[int] | None = None,
    scale: Sequence[float] | None = None,
    orientation: str | None = None,
    cut: str | None = None,
    family: str | None = None,
    checkpoint_key: str | None = None,
    checkpoint_prefix: str | None = None,
    ignore: str | Sequence[str] | None = None,
    register_neurons: str | Path | Mapping[Any, Sequence[int]] | None = None,
    test_time_registers: int | None = None,
) -> Encoder:
    """A frozen encoder.

    Images are resized, cropped and normalised as its entry in the registry says, or timm for weights that it publishes, or with
    ImageNet's constants for a custom checkpoint; each of the six arguments from `mean` on replaces one of these values.

    Args:
        name: of the registry, entries of other packages included, of timm, of another library or the user's code
            (`extract.encoders.libraries`), or any name if `model` is set.
        checkpoint: local weights instead of the ones the name stands for.
        random_seed: random weights from this seed instead; their last bits, so their digest, may depend on the CPU's maker.
        model: name in the registry or in timm that defines the encoder; `name` by default.
        arguments: of the architecture, for `timm.create_model` (img_size, …): as the weights need it.
        weights: digest that the loaded weights must have; any by default.
        mean, std: of red, green and blue, on the scale on which pixels are 0 to 1.
        crop_pct: share of the resized image's side that is kept: 0.875 keeps the central 224 of 256 pixels.
        crop_mode: "center" resizes the shorter side and cuts the longer one, "squash" resizes both alike to a square (with a
            `crop_pct` of 1 the whole image), "border" resizes the longer side and pads the shorter one with the mean; "slide"
            resizes the shorter side, and views are windows along the longer one, each two thirds of its side after the last.
        interpolation: "bicubic", "bilinear", …
        input_size: side of the square input, in pixels, or height and width ("336x448", or two numbers); positions that the
            model has learnt are interpolated.
        scale: values that become black and white in images of more than 8 bits, such as (0, 65535), which are refused without.
        orientation: "stored" shows images as they are in their files, "exif" turned upright as their EXIF says.
        cut: what resizes: "pillow", as timm does; "torch", which is faster, with values a few levels off at most;
            "draft", as torch, with large JPEGs decoded at a half to an eighth of their size, down to twice what is needed.
        family: how it was trained, one of `store.pretraining.FAMILIES`; by default as the registry says, which knows nothing
            of a custom name.
        checkpoint_key: of the dictionary in the checkpoint that holds the tensors, "a/b" for one in another. By default a file
            for an architecture of timm is searched, and one for a name of the registry is read as its authors write it.
        checkpoint_prefix: what their names begin with; the same by default.
        ignore: patterns ("decoder.*", listed or with commas) of names that may be in the checkpoint and that the model lacks.
        register_neurons: hidden units of its MLPs, by block, or a file of them (`beyondcls registers`): what they write into
            outliers goes to test-time registers, as `Encoder.add_registers` does it.
        test_time_registers: how many of these there are; one where there are neurons, 0 leaves them out.

    Raises:
        BeyondClsError: unknown name or family (with the nearest one), missing or unfitting checkpoint, another digest,
            options that contradict each other, or a bad value of the transform.

    Warns:
        BeyondClsWarning: no name in a checkpoint shows how it was trained; its transform is assumed; the registry has another
            transform for these weights; or of what was chosen of a checkpoint, what was left out, and its size of images.
    """
    if checkpoint is not None and random_seed is not None:
        raise BeyondClsError(
            f"{name} was given a checkpoint ({checkpoint}) and a random seed ({random_seed}); give one of them"
        )
    choice = TensorChoice.of(checkpoint_key, checkpoint_prefix, ignore)
    if checkpoint is None and choice != AS_FOUND:
        raise BeyondClsError(
            f"{name} was given checkpoint_key, checkpoint_prefix or ignore without a checkpoint; leave them out, or give "
            "--checkpoint FILE"
        )
    options = {"mean": mean, "std": std, "crop_pct": crop_pct, "crop_mode": crop_mode, "interpolation": interpolation}
    options |= {"scale": scale, "orientation": orientation, "cut": cut}
    notes: Sequence[str] = ()
    checked_family(family)
    plugin = ENCODERS.plugin(definer := model or name)
    if plugin is not None or is_of_library(definer):
        if checkpoint is not None:
            raise BeyondClsError(f"{definer} makes its own model; leave --checkpoint out, and read {checkpoint} there")
        of_seed = {} if random_seed is None else {"random_seed": random_seed}
        options |= {"input_size": input_size, "family": family}
        declared = None if plugin is None else (plugin, ENCODERS[definer])
        encoder, is_drawn = load_from_library(name, definer, {**(arguments or {}), **of_seed}, options, declared), bool(of_seed)
    else:
        encoder, is_drawn, notes = _load_pretrained(
            name, definer, checkpoint, random_seed, arguments, choice, checked_transform(options), input_size, family
        )
    if weights is not None and weights != encoder.weights:
        drawn = " (a seed gives other last bits on the CPU of another maker: keep such weights in a file, --checkpoint)"
        raise BeyondClsError(
            f"the weights of {name} have digest {encoder.weights}, expected {weights}{drawn if is_drawn else ''}; "
            "if the new weights are meant, put their digest into params.yaml (encoders) or --weights"
        )
    if register_neurons is not None and test_time_registers != 0:
        is_given = isinstance(register_neurons, Mapping)
        neurons = register_neurons if is_given else read_neurons(register_neurons)  # type: ignore[arg-type]
        encoder.add_registers(neurons, 1 if test_time_registers is None else test_time_registers)  # type: ignore[arg-type]
    elif test_time_registers:
        raise BeyondClsError(
            f"{name} was given {test_time_registers!r} test-time registers without register neurons, expected both; give "
            "--register-neurons FILE, which `beyondcls registers` writes"
        )
    for note in filter(None, notes):
        warnings.warn(note, BeyondClsWarning, stacklevel=2)
    return encoder


def _load_pretrained(
    name: str,
    definer: str,
    checkpoint: str | Path | None,
    random_seed: int | None,
    arguments: Mapping[str, Any] | None,
    choice: TensorChoice,
    transform: dict[str, Any],
    input_size: int | str | Sequence[int] | None,
    family: str | None,
) -> tuple[Encoder, bool, list[str]]:
    """An encoder of the registry or of timm, whether its weights were drawn, and what to know of it."""
    entry = _entry(definer, checkpoint is not None)
    pretraining = _pretraining(name, definer, checkpoint is not None, random_seed, family)
    loaded, described, found = entry.load(checkpoint, random_seed, arguments, choice, ENCODERS.own)
    if input_size is not None:
        sides = input_sides(input_size)
        if resize_input(name, loaded, sides):
            described["img_size"] = sides[0] if sides[0] == sides[1] else list(sides)
        transform["input_size"] = (3, *sides)
    is_drawn = random_seed is not None or (checkpoint is None and entry.seed is not None)
    caution = "" if is_drawn else cls_caution(loaded)
    encoder = Encoder(name, loaded, described, {**entry.transform, **transform}, entry.block, caution, pretraining)
    notes = [f"{name}: {note}" for note in found.notes]
    if found.side is not None and input_size is None:
        side = f"{found.side} x {found.side} pixels"
        notes.append(f"{name}: it sees {side}, as its positions are for that size; --input-size gives another")
    if checkpoint is not None:
        notes.append(_assumed_note(encoder, entry, transform))
    elif random_seed is None:
        notes.append(_registry_note(encoder, definer, transform))
    return encoder, is_drawn, notes


def _entry(name: str, is_local: bool = False) -> Pretrained:
    """The entry of a name; `is_local`: its weights are a file of the user.

    A custom checkpoint shares only its shape with what timm published for that architecture, unless a tag
    (`vit_base_patch16_224.mae`) says which of timm's it is.
    """
    if name in ENCODERS.own:
        return ENCODERS.own[name]
    if not timm.is_model(name) and not name.startswith(OF_HUBS):
        raise BeyondClsError(unknown("encoder", name, [*ENCODERS, *timm_names()], "Names of timm's ViTs count too"))
    transform = IMAGENET if is_local and "." not in name else {}
    return Pretrained(name, f"timm/{name}", "see timm", transform=transform, is_searched=True)


def known_pretraining(name: str) -> Pretraining:
    """How the encoder of a name was trained, as the registry says; UNKNOWN for a name that it does not know.

    A name of timm counts where its weights are those of an encoder of the registry.
    """
    entry = ENCODERS.own.get(name) or next((ENCODERS.own[other] for other in _entries_with_weights(name)), None)
    return UNKNOWN if entry is None else Pretraining(entry.family, entry.seed)


def _pretraining(name: str, model: str, is_local: bool, random_seed: int | None, family: str | None) -> Pretraining:
    """How the encoder that `load_encoder` loads was trained. A file under a name of the registry is taken for that entry."""
    known = known_pretraining(model) if not is_local or model in ENCODERS or "." in model else UNKNOWN  # a tag names weights
    if random_seed is None and (not is_local or model == name):
        random_seed = known.random_seed
    if random_seed is not None and family not in (None, UNTRAINED):
        raise BeyondClsError(
            f"{name} has random weights (seed {random_seed}), but its family is {family!r}; leave the family out, or give the "
            "weights that were trained, under a name of your own, as --checkpoint"
        )
    return Pretraining(family or ("" if random_seed is not None else known.family), random_seed)


def _assumed_note(encoder: Encoder, entry: Pretrained, options: Mapping[str, Any]) -> str:
    """What was assumed of the transform of a checkpoint; empty if its entry has it, or the options give all of it."""
    names = [name for name in entry.transform if name not in options]
    if entry in ENCODERS.own.values() or not names:
        return ""
    return (
        f"assumed for the checkpoint of {encoder.name}, as of ImageNet: {values_text(encoder.described_transform, names)}; "
        f"if it was trained with others, give --{' --'.join(names).replace('_', '-')} (in params.yaml mean: [0.5, 0.5, 0.5], …)"
    )


def _registry_note(encoder: Encoder, name: str, options: Mapping[str, Any]) -> str:
    """How the transform differs from that of the registry's encoder with the weights of timm's `name`; empty if not."""
    for entry_name in _entries_with_weights(name):
        entry: Pretrained = ENCODERS.own[entry_name]
        theirs, side = dict(entry.transform), entry.arguments.get("img_size")
        theirs |= {"input_size": (3, side, side)} if side else {}
        ours = encoder.described_transform
        if names := [n for n in differing_values(ours, theirs) if n not in options]:
            return (
                f"{name} has the weights of {entry_name}, but timm's transform: {values_text(ours, names, theirs)}; "
                f"to compare with the paper, give --encoder {entry_name} or {as_options(theirs, names)}"
            )
    return ""


def _entries_with_weights(name: str) -> list[str]:
    """Encoders of the registry that have the weights of timm's `name`."""
    try:
        config = None if name in ENCODERS or not timm.is_model(name) else timm.get_pretrained_cfg(name)
    except RuntimeError:  # a model of timm with a tag that it does not have
        config = None
    if config is None:
        return []
    addresses = (f"timm/{config.architecture}.{config.tag}", config.url)
    return [other for other, entry in ENCODERS.own.items() if entry.weights in addresses]


def timm_names(pretrained: bool = False) -> list[str]:
    """Names of timm's models that have tokens; with their tags those whose weights its hub has, if `pretrained`."""
    patterns = ["vit_*", "deit*", "beit*", "eva*", "aimv2*", "flexivit*", "convnext*", "mixer*"]
    return timm.list_models(patterns, pretrained=pretrained)


__all__ = ["ENCODERS", "Encoded", "Encoder", "Pretrained", "checked_family", "known_pretraining", "load_encoder", "timm_names"]
