"""Where features are kept while heads train: on the device, in memory, or on disk."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from store.errors import StoreError, unknown
from store.format.array import ArrayReader
from store.loading.memory import free_memory

Placement = Literal["auto", "device", "memory", "stream"]
PLACEMENTS = ("auto", "device", "memory", "stream")
DEVICE_SHARE, MEMORY_SHARE = 0.7, 0.5  # of what is free; the rest is for heads, gradients and everyone else


def choose_placement(
    arrays: Mapping[str, Sequence[ArrayReader]], n_rows: int, device: torch.device, placement: Placement
) -> tuple[dict[str, str], str]:
    """Where each array, with all its views, goes ("device", "memory" or "stream"), and the reason as text.

    "auto": all on the device if they fit there, else all in memory; else those that are small compared with the largest (an
    eighth of it) in memory, and the others are streamed. On the CPU, "device" and "memory" are the same.

    Raises:
        StoreError: unknown placement.
    """
    if placement not in PLACEMENTS:
        raise StoreError(unknown("placement", placement, PLACEMENTS))
    nbytes = {n: sum(array.nbytes // max(1, array.shape[0]) for array in views) * n_rows for n, views in arrays.items()}
    total = sum(nbytes.values())
    on_gpu = device.type != "cpu"
    if placement != "auto":
        chosen = "memory" if placement == "device" and not on_gpu else placement
        return dict.fromkeys(arrays, chosen), f"{chosen}, as asked for ({_size(total)})"
    if on_gpu and total <= DEVICE_SHARE * (free := free_memory(device)):
        return dict.fromkeys(arrays, "device"), f"device: {_size(total)} of {_size(free)} free there"
    free = free_memory(torch.device("cpu"))
    if total <= MEMORY_SHARE * free:
        return dict.fromkeys(arrays, "memory"), f"memory: {_size(total)} of {_size(free)} free"
    largest = max(nbytes.values())
    small = {name for name, size in nbytes.items() if size <= largest / 8 and size <= MEMORY_SHARE * free / 2}
    places = {name: "memory" if name in small else "stream" for name in arrays}
    in_memory = f", {', '.join(sorted(small))} in memory" if small else ""
    return places, f"stream: {_size(total)}, too much for {_size(free)} of free memory{in_memory}"


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
