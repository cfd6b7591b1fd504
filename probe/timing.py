"""How long heads take on this machine: that differs each time, so it is never part of a result."""

import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from probe.grid import HeadSpec
from probe.head import FinalNorm, Head
from probe.pooling import reads_stored
from probe.result_files import METRICS, digest_of
from probe.sources import Source
from probe.stack import Stack
from probe.train import isolated_randomness, losses_of
from store.format.layout import kind_of

FILE = "timing.json"  # next to metrics.json; not an output of DVC, which compares outputs bit by bit (.dvcignore)
N_IMAGES = 64
ROUNDS = 5
SECONDS = 2.0  # no new round starts after this time
AT_ONCE = {"cpu": 32, "cuda": 512}  # random images
POOLED = "vectors"  # name in a batch


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
    wait = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None  # until a GPU is done
    while not rounds or (len(rounds) < ROUNDS and sum(rounds) < SECONDS):
        wait()
        start = time.perf_counter()
        run()
        wait()
        rounds.append(time.perf_counter() - start)
    return min(rounds)


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


@dataclass(frozen=True)
class HeadRate:
    """How long a head takes to learn: seconds of one image, for all members of a head together, of features in memory.

    Attributes:
        learn_s: forward and backward, without the optimiser's step, which comes once a batch.
        judge_s: forward.
        pool_s: through an aggregator without parameters, once for all members; else 0. `learn_s` and `judge_s` then begin with
            its vectors.
        width: of its vector, in numbers.
    """

    learn_s: float
    judge_s: float
    pool_s: float
    width: int

    @property
    def is_pooled(self) -> bool:
        """Whether the aggregator has no parameters, so that the vector of an image never changes."""
        return self.pool_s > 0


def measure_head(
    spec: HeadSpec,
    shapes: Mapping[str, tuple[int, ...]],
    n_members: int,
    n_classes: int,
    multilabel: bool,
    device: torch.device,
) -> HeadRate:
    """Measure a head on random features.

    Args:
        shapes: of one image, by kind of features, of all that the head reads: {"patch": (T, D), "cls": (D,), …}.
        n_members: seeds and settings that train side by side.

    Raises:
        BeyondClsError: unknown aggregator or options.
    """
    n, of_tokens = AT_ONCE[device.type], [s for kind, s in shapes.items() if kind_of(kind) in ("patch", "cls", "registers")]
    dim, n_patches = (of_tokens or [(1,)])[0][-1], next((s[0] for kind, s in shapes.items() if kind_of(kind) == "patch"), None)
    norm = FinalNorm(torch.ones(dim), torch.zeros(dim), 1e-6) if spec.final_norm else None
    heads = [spec.build(dim, n_patches, n_classes, norm, seed) for seed in range(n_members)]
    aggregator = heads[0].aggregator.to(device)
    stored = torch.float16 if reads_stored(device) and aggregator.takes_stored and norm is None else torch.float32
    with isolated_randomness(0):
        batch = {kind: torch.randn(n, *shapes[kind]) for kind in aggregator.reads}
        for kind, values in batch.items():  # rows of attention are positive and sum to 1
            batch[kind] = (values.softmax(-1) if "attention" in kind else values.to(stored)).to(device)
        labels = torch.randint(2, (n, n_classes)) if multilabel else torch.randint(n_classes, (n,))
        batch["label"] = labels.to(device)
        pool_s = 0.0
        if not aggregator.trainable:
            with torch.no_grad():
                pool_s = fastest(lambda: aggregator.eval()(batch), device) / n
                batch[POOLED] = torch.randn(n, aggregator.width, device=device)
        stack = Stack(heads, device, None if aggregator.trainable else POOLED)
        final_norm = None if norm is None else norm.to(device)

        def backpropagate() -> None:
            logits, _ = stack(batch if final_norm is None else final_norm(batch), training=True)
            losses_of(logits, batch["label"]).sum().backward()

        learn_s = fastest(backpropagate, device) / n
        with torch.no_grad():
            judge_s = fastest(lambda: stack(batch), device) / n
    return HeadRate(learn_s, judge_s, pool_s, aggregator.width)
