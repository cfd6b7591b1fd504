"""What `beyondcls extract` and `plan` are asked for: an encoder on its device, and a request of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.parameters.extraction import COMPUTING, FEATURES, RUNNING
from pipelines.parameters.options import select_options

if TYPE_CHECKING:
    import torch

    from extract.datasets import ImageSet
    from extract.encoders import Encoder
    from extract.requests import Request


def place_encoder(encoder: "Encoder", given: Mapping[str, Any], device: str) -> "torch.device":
    """Move an encoder to its device, ready to run as the options of COMPUTING say.

    Args:
        given: options of the command line.
        device: as for `choose_device`.

    Raises:
        BeyondClsError: there is no such device, or an option has no such value.
    """
    from pipelines.process.allocator import keep_freed_memory
    from pipelines.process.device import choose_device

    place = choose_device(device)
    encoder.run_with(**select_options(given, COMPUTING))
    encoder.model.to(place)
    if place.type == "cpu":
        keep_freed_memory()
    return place


def request_features(
    encoder: "Encoder", images: "ImageSet", of_params: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple["Request", dict[str, Any]]:
    """The request of an encoder, and options of RUNNING; those of the command line win over those of a parameter file.

    Raises:
        BeyondClsError: an option has no such value.
    """
    from extract.requests import Request
    from extract.selection import possible_statistics

    options = {**of_params, **select_options(given, {**FEATURES, **RUNNING})}
    if "statistics" not in given:  # the parameter file lists them for all encoders
        options["statistics"] = possible_statistics(encoder, options.get("statistics"))
    return Request.resolve(encoder, images, **select_options(options, FEATURES)), select_options(options, RUNNING)
