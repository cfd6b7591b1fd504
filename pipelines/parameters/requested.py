"""What `beyondcls extract` and `plan` are asked for: images, an encoder on its device, and a request of the two."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.parameters.datasets import images_of
from pipelines.parameters.extraction import COMPUTING, RUNNING
from pipelines.parameters.features import FEATURES, IMAGES
from pipelines.parameters.options import select_options
from pipelines.parameters.params import read_params
from store import BeyondClsError

if TYPE_CHECKING:
    import torch

    from extract.datasets import ImageSet
    from extract.encoders import Encoder
    from extract.requests import Request


def requested_images(
    encoder: str, data: str | None, dataset: str | None, params: Path | None, given: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The source of images, and how they are opened: arguments of `open_images`.

    Args:
        encoder: name, for messages.
        data: images that were named on the command line.
        dataset: name in the parameter file, instead.
        given: options of the command line, which win.

    Raises:
        BeyondClsError: neither, both, or no parameter file.
    """
    options = select_options(given, IMAGES)
    if data is not None and dataset is not None:
        raise BeyondClsError(f"--data {data} and --dataset {dataset} exclude each other; give one of them")
    if data is not None:
        return data, options
    if dataset is None:
        raise BeyondClsError(f"no images were named for {encoder}; give --data, or --dataset NAME of a parameter file")
    if params is None:
        raise BeyondClsError(f"--dataset {dataset} is in a parameter file; name it with --params, e.g. --params params.yaml")
    split = options.pop("split", None)
    if split not in (None, "train", "test"):
        raise BeyondClsError(f"--split is {split!r}, expected train or test: datasets.{dataset} says how they are called there")
    images = images_of(read_params(params), dataset, split)
    if images.get("classes") is not None:
        images["classes"] = Path(images["classes"])
    return images.pop("data"), {**images, **options}


def notes_on(images: "ImageSet") -> list[str]:
    """What to know of images before they are extracted: what is left out, and that they have no labels; a line each."""
    notes = []
    if images.left_out:
        notes.append(f"note: {len(images):,} images of {images.source} are taken; left out: {images.left_out}")
    if images.is_unlabelled:
        notes.append(f"note: no image of {images.source} has a label: what is extracted can be looked at, but not be probed")
    return notes


def place_encoder(encoder: "Encoder", options: Mapping[str, Any], device: str, there: Path | None = None) -> "torch.device":
    """Move an encoder to its device, ready to run as options of COMPUTING say.

    Where they do not say what matrices are multiplied in, it is what the set that is `there` was made with; else bf16 on a GPU
    that has it, and float32 elsewhere.

    Args:
        device: as for `choose_device`.
        there: the folder of a feature set, if there is one.

    Raises:
        BeyondClsError: there is no such device, or an option has no such value.
    """
    import torch

    from extract.encoders.encoder import AMP_OF
    from pipelines.process.device import choose_device
    from store import FeatureStore, StoreError

    place = choose_device(device)
    amp = "bf16" if place.type == "cuda" and torch.cuda.get_device_capability(place) >= (8, 0) else "none"
    if there is not None and (there / "zarr.json").exists():
        with suppress(StoreError):  # what is wrong with it is said where it is used
            amp = AMP_OF.get(FeatureStore.describe(there).spec.compute_dtype, "none")
    encoder.run_with(**{"amp": amp, **select_options(options, COMPUTING)})
    encoder.model.to(place)
    return place


def request_features(
    encoder: "Encoder", images: "ImageSet", options: Mapping[str, Any], is_listed_for_all: bool
) -> tuple["Request", dict[str, Any]]:
    """The request of an encoder, and options of RUNNING.

    Args:
        is_listed_for_all: whether `statistics` are listed for several encoders, of which each gets those that it can have.

    Raises:
        BeyondClsError: an option has no such value.
    """
    from extract.requests import Request, possible_statistics

    features = select_options(options, FEATURES)
    if is_listed_for_all:
        features["statistics"] = possible_statistics(encoder, features.get("statistics"))
    return Request.resolve(encoder, images, **features), select_options(options, RUNNING)
