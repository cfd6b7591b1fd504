"""Probing in one pass, against one head at a time, against the encoder in the loop, and against a plain PyTorch loop.

    python -m benchmarks.probe [--quick] [--rounds 3] [--device cpu] [--only grid|nine|table1|step]

`grid32_vs_solo`: seconds of 32 runs of one AbMILP head each (8 learning rates x 4 seeds) / seconds of one run with all 32, 30
epochs of 2,048 images, from the features of a ViT-S/14 at 224 pixels ([256, 384] tokens, float16) that each run reads from the
page cache into memory; the ratio for training alone is printed too. `nine_heads_vs_dataloader`: seconds of nine heads ([cls],
average patch, AbMILP; 3 seeds each), 30 epochs, trained one at a time by a plain loop over a DataLoader / seconds of training
all nine in one pass, from the same tensors in memory. Medians over interleaved rounds.
`table1_vs_recompute`: the same nine heads, 90 epochs, on the 5,000 quickstart images at 112 pixels through a ViT-S/14: seconds
that it takes with the encoder in the loop, one run a head (a part of an epoch is timed, of images that are decoded already and
are never measured on a test set, and multiplied) / seconds of `extract` of training and test images with everything it keeps,
and of `probe` with all it writes.
`step…_vs_limit`: seconds that a training step would take if it only read the tokens, or only multiplied them, at the rates of
this machine / seconds that it takes, for 1 and 32 AbMILP heads on tokens in memory (benchmarks/roofline.py).
With --quick fewer images, members and epochs: under a minute, and no evidence.
The last line is JSON.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.plain_heads import PlainHead
from benchmarks.roofline import shares_of_limit
from benchmarks.timing import ROOT, conclude
from extract.datasets import ImageSet, open_images
from extract.encoders import Encoder
from extract.run import extract
from pipelines.process.device import keep_freed_memory
from probe.grid import HeadPlan, HeadSpec, Member
from probe.passes import HeadPasses
from probe.pooled import READ_ROWS
from probe.recipe import Recipe
from probe.run import probe
from probe.sources import Source
from probe.stack import Stack
from probe.train import Family, train
from store import ArrayLayout, FeatureSpec, FeatureStore, FeatureWriter

TOKENS, DIM, CLASSES, BATCH = 256, 384, 10, 512  # a ViT-S/14 at 224 pixels, CIFAR-10's classes
LRS, SEEDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (0, 1, 2, 3)
AGGREGATORS = ("cls", "average", "abmilp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, and no evidence")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=("grid", "nine", "table1", "step"), help="one of the four")
    given = parser.parse_args()
    keep_freed_memory()
    device, rounds = torch.device(given.device), 1 if given.quick else given.rounds
    ratios = {}
    if given.only in (None, "grid"):
        features = Features.random(BATCH // 2 if given.quick else 4 * BATCH, device)
        ratios["grid32_vs_solo"] = grid_vs_solo(features, rounds, 1 if given.quick else 30)
    if given.only in (None, "nine"):
        features = Features.random(BATCH if given.quick else 4 * BATCH, device)
        ratios["nine_heads_vs_dataloader"] = nine_vs_dataloader(features, rounds, 2 if given.quick else 30)
    if given.only in (None, "table1"):
        ratios["table1_vs_recompute"] = table1_vs_recompute(device, *((96, 32, 4) if given.quick else (5000, 1000, 90)))
    if given.only in (None, "step"):
        ratios |= shares_of_limit(device, given.quick)
    conclude(ratios, rounds >= 3)


@dataclass
class Features:
    """Tokens in memory, in the dtype in which they are stored; AbMILP takes them as they are."""

    patch: Tensor
    cls: Tensor
    label: Tensor
    n_rows: int
    kinds: tuple[str, ...] = ("cls", "patch")
    average: Tensor | None = None

    @classmethod
    def random(cls, n: int, device: torch.device) -> "Features":
        torch.manual_seed(0)
        tokens = torch.randn(n, 1 + TOKENS, DIM, device=device).half()
        return cls(tokens[:, 1:].contiguous(), tokens[:, 0].contiguous(), torch.randint(CLASSES, (n,), device=device), n)

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
        order = torch.randperm(self.n_rows, generator=torch.Generator().manual_seed(seed % 2**63)).to(self.label.device)
        for rows in order.split(BATCH):
            batch = {kind: getattr(self, kind)[rows] for kind in self.kinds}
            yield {**batch, "label": self.label[rows], "row": rows}


def families(members: list[Member], device: torch.device, by_vectors: bool = False) -> list[Family]:
    """Ready to train, one of each aggregator; from vectors pooled in advance, with `by_vectors`."""
    built = []
    for name in sorted({member.head for member in members}):
        of_head = [member for member in members if member.head == name]
        heads = [HeadSpec(name).build(DIM, TOKENS, CLASSES, seed=member.seed) for member in of_head]
        values = torch.tensor([[m.base_lr, m.weight_decay] for m in of_head], dtype=torch.float64, device=device)
        built.append(Family(Stack(heads, device, name if by_vectors else None), values[:, 0], values[:, 1], list(of_head)))
    return built


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call, including all work that it started on the device."""
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def ratio(slow: Callable[[], Any], fast: Callable[[], Any], rounds: int, device: torch.device, what: str) -> float:
    """Median over rounds of seconds of `slow` / seconds of `fast`."""
    fast()  # memory, libraries: what is paid once
    pairs = []
    for number in range(rounds):
        ways = (slow, fast) if number % 2 == 0 else (fast, slow)
        times = [seconds_of(way, device) for way in ways]
        pairs.append(tuple(times if number % 2 == 0 else times[::-1]))
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{what}: {a:.2f} s / {b:.2f} s")
    return statistics.median(one / other for one, other in pairs)


def grid_vs_solo(features: Features, rounds: int, epochs: int) -> float:
    """32 runs of one AbMILP head / one run of all; a run begins with reading the features."""
    device, recipe = features.label.device, Recipe(epochs=epochs, batch_size=BATCH, warmup_epochs=0)
    members = [Member("abmilp", lr, 0.0, seed) for lr in LRS for seed in SEEDS]
    with tempfile.TemporaryDirectory() as scratch:
        training, few = (written(features, n, Path(scratch) / name) for n, name in ((features.n_rows, "train"), (64, "test")))

        def run(chosen: list[Member]) -> None:
            learn, judge = (Source(FeatureStore.open(store.path)) for store in (training, few))
            HeadPasses({"abmilp": HeadSpec("abmilp")}, learn, judge, device=device).train(chosen, recipe)

        def solo() -> None:
            for member in members:
                run([member])

        over_runs = ratio(solo, lambda: run(members), rounds, device, "32 AbMILP heads, a run each / in one run")
    features.kinds = ("patch",)
    few_epochs = replace(recipe, epochs=min(5, epochs))
    timed = lambda chosen: seconds_of(partial(train, families(chosen, device), features, None, few_epochs), device)  # noqa: E731
    pairs = [(timed(members[:1]), timed(members)) for _ in range(2 * rounds + 1)]
    one, every = (statistics.median(column) / few_epochs.epochs for column in zip(*pairs, strict=True))
    print(f"  an epoch of training: 32 x {one:.3f} s / {every:.3f} s = {32 * one / every:.2f}")
    return over_runs


def nine_vs_dataloader(features: Features, rounds: int, epochs: int) -> float:
    """Nine heads by a plain loop, one by one / in one pass; from the same tensors."""
    device, recipe = features.label.device, Recipe(epochs=epochs, batch_size=BATCH, warmup_epochs=0)
    members = [Member(name, recipe.base_lr, 0.0, seed) for name in AGGREGATORS for seed in SEEDS[:3]]

    def plain() -> None:
        for member in members:
            torch.manual_seed(member.seed)
            tokens = features.cls if member.head == "cls" else features.patch
            loader = DataLoader(TensorDataset(tokens.cpu(), features.label.cpu()), BATCH, shuffle=True)
            plain_loop(PlainHead(member.head, DIM, CLASSES).to(device), loader, epochs, device)

    def together() -> None:
        # As `HeadPasses`: what has no parameters is pooled once.
        average = torch.cat([rows.float().mean(1) for rows in features.patch.split(READ_ROWS)])
        pooled = Features(features.patch, features.cls.float(), features.label, features.n_rows, ("cls", "average"), average)
        train(families(members[:6], device, by_vectors=True), pooled, None, recipe)
        train(families(members[6:], device), replace(features, kinds=("patch",)), None, recipe)

    return ratio(plain, together, rounds, device, f"nine heads x {epochs} epochs by a DataLoader, one by one / in one pass")


def written(features: Features, n: int, path: Path) -> FeatureStore:
    """The first n rows as a feature set."""
    arrays = {
        "images/label": (features.label[:n].cpu().numpy(), ("image",)),
        "images/valid": (np.ones(n, np.uint8), ("image",)),
        "patch/block11/view0": (features.patch[:n].cpu().numpy(), ("image", "patch", "channel")),
        "cls/block11/view0": (features.cls[:n].cpu().numpy(), ("image", "channel")),
    }
    codecs = {name: "float16" if name[0] in "pc" else None for name in arrays}
    layouts = [ArrayLayout(k, v.shape, v.dtype.name, dims, 512, codec=codecs[k]) for k, (v, dims) in arrays.items()]
    spec = FeatureSpec("w", "{}", {"input_size": [3, 224, 224]}, f"data{n}", n, (11,))
    with FeatureWriter(path, spec, layouts) as writer:
        for unit in writer.missing_units():
            writer.write_unit(unit, {layout.name: arrays[layout.name][0][slice(*layout.rows(unit))] for layout in layouts})
        classes = [str(i) for i in range(CLASSES)]
        writer.finish({"encoder": "benchmark", "norm_eps": None, "classes": classes, "problems": []})
    return FeatureStore.open(path)


def plain_loop(head: nn.Module, batches: Any, epochs: int, device: torch.device, encode: Any = None) -> None:
    """A plain training loop; with the encoder in it, if one is given."""
    optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for x, y in batches:
            tokens = x.to(device) if encode is None else encode(x.to(device))
            loss = F.cross_entropy(head(tokens.float()), y.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def table1_vs_recompute(device: torch.device, n_training: int, n_test: int, epochs: int) -> float:
    """3 aggregators x 3 seeds x `epochs` with the ViT in the loop / extracted once and probed."""
    torch.manual_seed(0)
    model: Any = timm.create_model("vit_small_patch14_dinov2", img_size=112, num_classes=0)
    encoder = Encoder("benchmark", model.eval().requires_grad_(False).to(device), {"img_size": 112})
    sets = [
        first(open_images(str(ROOT / f"quickstart/data/cifar10/{s}")), n) for s, n in (("train", n_training), ("test", n_test))
    ]
    recipe = Recipe(epochs=epochs, batch_size=BATCH, warmup_epochs=min(10, epochs - 1))
    plans = {name: HeadPlan(HeadSpec(name), recipe) for name in AGGREGATORS}
    with tempfile.TemporaryDirectory() as scratch:
        folder, began = Path(scratch), time.perf_counter()
        stores = [
            extract(encoder, images, folder / name, batch_size=64) for images, name in zip(sets, ("train", "test"), strict=True)
        ]
        extracted = time.perf_counter() - began
        assert stores[0] is not None
        assert stores[1] is not None
        probe(stores[0], stores[1], folder / "probes", plans, device=device)
        ours = time.perf_counter() - began
    images = torch.stack([encoder.transform(sets[0].image(row)) for row in range(min(256, n_training))])
    batches = [(part, torch.zeros(len(part), dtype=torch.long)) for part in images.split(64)]
    heads = {name: PlainHead(name, DIM, CLASSES).to(device) for name in AGGREGATORS}

    @torch.inference_mode()
    def tokens(x: Tensor, name: str) -> Tensor:
        x = model.forward_features(x)
        return x[:, 0] if name == "cls" else x[:, 1:]

    encode = lambda name: lambda x: tokens(x, name).clone()  # noqa: E731
    plain_loop(heads["cls"], batches[:1], 1, device, encode("cls"))
    per_image = 0.0
    for name, head in heads.items():
        seconds = seconds_of(lambda h=head, n=name: plain_loop(h, batches, 1, device, encode(n)), device)  # type: ignore[misc]
        per_image += seconds / len(images)
    theirs = per_image * 3 * epochs * n_training  # three seeds of each
    print(f"Table 1: {theirs:.0f} s with the encoder in the loop / {ours:.1f} s, of which {extracted:.1f} s to extract")
    return theirs / ours


def first(images: ImageSet, n: int) -> ImageSet:
    """The first images of a set."""
    return ImageSet(images.source, images.samples[:n], images.classes)


if __name__ == "__main__":
    main()
