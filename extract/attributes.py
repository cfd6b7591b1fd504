"""What a feature set says of its encoder, its classes and problems of its images, beside its description."""

from collections.abc import Mapping, Sequence
from typing import Any

from extract.datasets import DataError, ImageSet
from extract.encoders import known_pretraining
from extract.encoders.cost import cost_of
from extract.requests import Request
from extract.settings import OnError, Settings
from store import ArrayLayout, FeatureStore
from store.format.layout import DIGEST, KINDS
from store.format.pretraining import NAMES, Pretraining

COMPARED = ("norm_eps", "classes", "cls_caution")  # attributes that are brought up to date


def attributes_of(request: Request, settings: Settings) -> dict[str, Any]:
    """Attributes of the set beside its description.

    Raises:
        DataError: images are damaged or unlabelled and the settings don't want that recorded, or there is none.
    """
    encoder, classes = request.encoder, request.images.classes
    cost = cost_of(encoder.model, encoder.config["input_size"])
    caution = {"cls_caution": encoder.cls_caution} if encoder.cls_caution else {}
    truth_classes = {name: list(request.images.truths[name].classes) for name in request.truths}
    return {
        "encoder": encoder.name,
        "norm_eps": encoder.norm()[1],
        "classes": None if classes is None else list(classes),
        "problems": _checked_problems(request.images, settings.on_error),
        **({"truth_classes": truth_classes} if truth_classes else {}),
        **({"grid": list(encoder.grid)} if encoder.grid[0] != encoder.grid[1] else {}),
        **encoder.pretraining.to_dict(),
        **({} if cost is None else {"encoder_flops": cost.flops}),
        **caution,
    }


def _checked_problems(images: ImageSet, on_error: OnError) -> list[str]:
    """Problems of the images, without paths."""
    problems = images.all_problems()
    if problems and on_error == "raise":
        total = f"\n({len(problems)} problems in all)" if len(problems) > 10 else ""
        raise DataError("\n".join(problems[:10]) + total + "\nmend the data, or go on with --on-error record")
    if len(images) == 0:
        raise DataError(f"{images.source} has no readable images:\n" + "\n".join(problems[:10]))
    for folder in {sample.file.parent for sample in images.samples}:
        problems = [problem.replace(f"{folder}/", "") for problem in problems]
    return problems


def is_current(stored: FeatureStore, attributes: Mapping[str, Any]) -> bool:
    """Whether nothing has to be written: this copy lacks no array and no kind's group, and its attributes are current.

    Kinds that are newer than a set have no group in it, which a pipeline that names all kinds would miss.
    """
    whole = len(stored.arrays) == len(stored.attributes["arrays"]) and all(map(stored.place.has_folder, KINDS))
    same = all(stored.attributes.get(name) == attributes.get(name) for name in COMPARED)
    return whole and same and training_difference(stored, attributes) is None


def kept_attributes(
    base: FeatureStore | None, request: Request, layouts: Sequence[ArrayLayout], attributes: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Attributes of a set that is repaired or completed: an older one keeps its attributes, so that its receipt still fits."""
    if base is None or base.spec.key != request.spec.key:
        return attributes
    left_out: set[str] = set()
    if "encoder" in base.attributes:
        records_training = NAMES[0] in base.attributes or training_difference(base, attributes) is not None
        left_out |= {"encoder_flops"} - set(base.attributes)
    else:  # its zarr.json is lost; a set without digests of images is older than these attributes
        records_training = any(layout.name == DIGEST for layout in layouts)
    left_out |= set() if records_training else {*NAMES, "encoder_flops"}
    return {name: value for name, value in attributes.items() if name not in left_out}


def training_difference(stored: FeatureStore, attributes: Mapping[str, Any]) -> str | None:
    """How a set's record of its encoder's training differs from what is known now; None where it does not.

    A set that is older than these attributes is taken to record what the registry knows of its encoder's name, so that it
    need not be written again because of them, nor checked again by what depends on it.
    """
    recorded = Pretraining.from_dict(stored.attributes) or known_pretraining(str(stored.attributes["encoder"]))
    current = Pretraining.from_dict(attributes)
    if current is None or recorded == current:
        return None
    return f"{stored.where} records this training of its encoder: {recorded.in_words}; now it is: {current.in_words}"
