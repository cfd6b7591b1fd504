"""How near training comes to what this machine can do: the time of a step's necessary reads or products alone / its own.

A step of M AbMILP heads must read the tokens twice, forward and backward, and multiply them by M queries four times: scores and
sums, forward and backward. It cannot take less time than the slower of these two takes at the rates that are measured here: of
memory that is only read, and of a product of large square matrices. Normalisation, classifier, loss and the optimiser's step
are work beyond the limit, and so are widening tokens to float32 and whatever is read or written more than once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probe.grid import HeadSpec
from probe.recipe import Recipe
from probe.stack import Stack
from probe.timing import fastest
from probe.train import Family, train
from store import onednn

MEMORY_NBYTES = 1 << 30  # more than caches hold, so that they are no help
MATRIX = {"cpu": 1024, "cuda": 8192}  # rows and columns
TOKENS, CLASSES = 196, 10  # of 224 pixels in patches of 16
CASES = ((1, 256, 768), (1, 512, 384), (32, 256, 768), (32, 512, 384))  # heads, images, channels


@dataclass(frozen=True)
class Machine:
    """What a device can do at best.

    Attributes:
        nbytes_per_s: read from memory.
        flops_per_s: products and sums about as exact as float32's.
    """

    nbytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Work:
    """What a training step cannot do without.

    Attributes:
        nbytes: of tokens that are read.
        flops: products and sums of tokens and queries.
    """

    nbytes: int
    flops: int

    @classmethod
    def of(cls, members: int, tokens: Tensor) -> "Work":
        """Of a step of so many AbMILP heads on tokens [B, T, D]."""
        return cls(2 * tokens.nbytes, 4 * 2 * members * tokens.numel())


@dataclass(frozen=True)
class Steps:
    """Batches in memory: the same labels for each."""

    batches: Tensor  # [N, B, T, D]
    labels: Tensor

    @property
    def n_rows(self) -> int:
        return len(self.batches) * len(self.labels)

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
        rows = torch.arange(len(self.labels), device=self.labels.device)
        yield from ({"patch": tokens, "label": self.labels, "row": rows} for tokens in self.batches)


def shares_of_limit(device: torch.device, quick: bool) -> dict[str, float]:
    """Seconds of the limit / seconds of a step, by case; what both consist of is printed."""
    machine = measured(device, MEMORY_NBYTES // 8 if quick else MEMORY_NBYTES)
    print(f"{device}: {machine.nbytes_per_s / 1e9:.1f} GB/s from memory, {machine.flops_per_s / 1e9:,.0f} GFLOP/s")
    shares = {}
    for members, n_images, dim in CASES:
        steps = random_steps(n_images // 8 if quick else n_images, dim, device, quick)
        work = Work.of(members, steps.batches[0])
        seconds = seconds_of_step(members, steps)
        reading, multiplying = work.nbytes / machine.nbytes_per_s, work.flops / machine.flops_per_s
        limit = max(reading, multiplying)
        shares[f"step{members}_dim{dim}_vs_limit"] = limit / seconds
        print(
            f"  {members} AbMILP, {len(steps.labels)} images of {TOKENS} x {dim} in float16: {1e3 * seconds:.2f} ms a step; "
            f"{work.nbytes / 1e6:.0f} MB take {1e3 * reading:.2f} ms, {work.flops / 1e9:.2f} GFLOP {1e3 * multiplying:.2f} ms: "
            f"{limit / seconds:.0%} of the limit, which {'memory' if reading > multiplying else 'multiplying'} sets"
        )
    return shares


@torch.no_grad()
def measured(device: torch.device, nbytes: int) -> Machine:
    """Rates of the fastest of a few sums over so much memory, and of products of square matrices."""
    memory, n = torch.ones(nbytes // 4, device=device), MATRIX[device.type]
    read = memory.nbytes / fastest(memory.sum, device)
    # On a GPU tokens of 16 bits are multiplied by two parts of each query, which takes twice the products.
    parts, dtype = (2, torch.float16) if device.type == "cuda" else (1, torch.float32)
    matrix = torch.randn(n, n, device=device).to(dtype)
    products: list[Callable[[], Tensor]] = [lambda: matrix @ matrix]
    if device.type == "cpu" and onednn.is_faster():
        products.append(lambda: onednn.linear(matrix, matrix))
    return Machine(read, 2 * n**3 / min(fastest(product, device) for product in products) / parts)


def random_steps(n_images: int, dim: int, device: torch.device, quick: bool) -> Steps:
    """Batches of tokens in float16, more than caches hold; two alone, with `quick`."""
    generator = torch.Generator(device).manual_seed(0)
    tokens = torch.randn(n_images, TOKENS, dim, device=device, generator=generator).half()
    labels = torch.randint(CLASSES, (n_images,), device=device, generator=generator)
    return Steps(tokens.repeat(2 if quick else MEMORY_NBYTES // tokens.nbytes + 1, 1, 1, 1), labels)


def seconds_of_step(members: int, steps: Steps) -> float:
    """Of the fastest of a few epochs, divided by its steps."""
    n_images, n_tokens, dim = steps.batches[0].shape
    heads = [HeadSpec("abmilp").build(dim, n_tokens, CLASSES, seed=seed) for seed in range(members)]
    rates = torch.full((members,), 0.1, dtype=torch.float64, device=steps.labels.device)
    family = Family(Stack(heads, steps.labels.device), rates, torch.zeros_like(rates), list(range(members)))
    recipe = Recipe(epochs=1, batch_size=n_images, warmup_epochs=0)
    return fastest(lambda: train([family], steps, None, recipe), steps.labels.device) / len(steps.batches)
