"""How long a head takes on this machine: that differs each time, so it is never part of the result."""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from probe.head import Head
from probe.result_files import METRICS, digest_of
from probe.sources import Source

FILE = "timing.json"  # next to metrics.json; not an output of DVC, which compares outputs bit by bit (.dvcignore)
N_IMAGES = 64
ROUNDS = 5
SECONDS = 2.0  # no new round starts after this time


@dataclass(frozen=True)
class Timing:
    """The time of a forward pass through aggregator and classifier, on features in memory.

    Attributes:
        ms_per_image: milliseconds of the fastest round, divided by its images.
        n_images: images of a round, computed at once.
        device: "cpu", or the name of the GPU.
        threads: threads of torch on the CPU.
    """

    ms_per_image: float
    n_images: int
    device: str
    threads: int


@dataclass(frozen=True)
class Together:
    """The training of heads that read the features together, so that none has a time of its own.

    Attributes:
        training_s: seconds from the first step to the last, selection included, since the command was last started.
        n_trained_together: heads that share them.
    """

    training_s: float
    n_trained_together: int


def time_head(head: Head, source: Source, device: torch.device) -> Timing:
    """Time a head on the first images of a source; the head stays as it is."""
    shadow, first_images = copy.deepcopy(head).to(device).eval(), source.part(source.rows[:N_IMAGES])
    batch = next(iter(first_images.loader(head.aggregator.reads, batch_size=N_IMAGES, shuffle=False).epoch()))
    features: dict[str, Shaped[Tensor, "B *_"]] = {kind: batch[kind].to(device) for kind in head.aggregator.reads}
    with torch.no_grad():
        seconds = fastest(lambda: shadow(features), device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return Timing(1000 * seconds / len(first_images.rows), len(first_images.rows), name, torch.get_num_threads())


def fastest(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several runs, after one that is not counted; slower ones waited for the machine."""
    rounds: list[float] = []
    run()
    while not rounds or (len(rounds) < ROUNDS and sum(rounds) < SECONDS):
        _wait_for_gpu(device)
        start = time.perf_counter()
        run()
        _wait_for_gpu(device)
        rounds.append(time.perf_counter() - start)
    return min(rounds)


def _wait_for_gpu(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write_timing(folder: Path, timing: Timing, together: Together | None = None) -> None:
    """Write timing.json into the folder of a head, with the digest of what describes it.

    DVC may restore another result without a run; then the time does not belong to it.
    """
    _write(folder, asdict(timing) | (asdict(together) if together else {}))


def matches_result(folder: Path) -> bool:
    """Whether the folder of a head has a timing.json that belongs to its result; False if it is damaged."""
    try:
        return bool(json.loads((folder / FILE).read_text())["metrics"] == digest_of(folder / METRICS))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def restamp_timing(folder: Path) -> None:
    """Assign the time to the description that replaced another one of the same head."""
    _write(folder, json.loads((folder / FILE).read_text()))


def _write(folder: Path, timing: dict[str, Any]) -> None:
    (folder / FILE).write_text(json.dumps(timing | {"metrics": digest_of(folder / METRICS)}, indent=1) + "\n")
