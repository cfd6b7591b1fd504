"""What computed a result: versions of packages, and the kind of machine."""

from typing import Any

import torch

from store.environment import machine, versions_of

PACKAGES = ("beyondcls", "torch", "numpy")  # whose versions may change what is computed from features


def computed_by(device: torch.device) -> dict[str, Any]:
    """The entries `versions` and `machine` of a description."""
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = versions_of(PACKAGES) | {"torch": str(torch.__version__)}  # which says for which CUDA it was built
    return {"versions": versions, "machine": machine(model)}
