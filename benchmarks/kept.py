"""The cost of checking against computing again: a feature set by a sample of its images, a head by its request.

    python -m benchmarks.kept [--quick] [--rounds 3] [--images 64]

Extracts the quickstart's training images with its MAE, and asks for the same set again, which compares a sample; trains AbMILP
on it (3 seeds, 40 epochs), and asks for the same head again, which reads its files. `extraction_vs_check` and
`training_vs_check` are ratios of seconds, medians over rounds, without imports and loading of weights. The rate at which a
ViT-B/16 of random weights goes through a check is measured on `--images` images, and from it follows what a check of ImageNet's
training images would take on this machine, in shards of the size that extraction gives them. The last line is JSON.
"""

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import ROOT, conclude
from extract.datasets import ImageSet, open_images
from extract.encoders import Encoder, load_encoder
from extract.requests import Request
from extract.run import update
from extract.sample import PER_SHARD
from extract.writing import Settings
from pipelines.process.device import keep_freed_memory
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from store import FeatureStore
from store.format.layout import shard_rows_of

IMAGENET = 1_281_167


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,000 images, 10 epochs, one round: under a minute")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=64, help="that a ViT-B is timed on")
    given = parser.parse_args()
    keep_freed_memory()  # as the commands do
    os.chdir(ROOT)  # the quickstart's encoders are found relative to it
    data = ROOT / "quickstart/data/cifar10"
    encoder = load_encoder("quickstart-mae")
    test = open_images(str(data / "test"))
    training = test if given.quick else open_images(str(data / "train"))
    rounds, epochs = (1, 10) if given.quick else (given.rounds, 40)
    times: dict[str, list[float]] = {name: [] for name in ("extraction", "its check", "training", "its check by request")}
    for _ in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="beyondcls-kept-"))
        try:
            one_round(folder, encoder, training, test, epochs, times)
        finally:
            shutil.rmtree(folder)
    for name, seconds in times.items():
        print(f"{name:20} {statistics.median(seconds):7.2f} s")
    estimate_imagenet(8 if given.quick else given.images, test)
    ratio = lambda one, other: round(statistics.median(a / b for a, b in zip(times[one], times[other], strict=True)), 2)  # noqa: E731
    ratios = {"extraction_vs_check": ratio("extraction", "its check")}
    conclude(ratios | {"training_vs_check": ratio("training", "its check by request")}, rounds >= 3)


def one_round(
    folder: Path, encoder: Encoder, training: ImageSet, test: ImageSet, epochs: int, times: dict[str, list[float]]
) -> None:
    """Append the seconds of each of `times`."""
    sets = [extracted(encoder, images, folder / name) for name, images in (("train", training), ("test", test))]
    times["extraction"].append(seconds_of(lambda: extracted(encoder, training, folder / "again")))
    times["its check"].append(seconds_of(lambda: extracted(encoder, training, folder / "again")))
    plan = HeadPlan(HeadSpec("abmilp"), Recipe(epochs=epochs, batch_size=256, base_lr=0.03, warmup_epochs=4))
    for name in ("training", "its check by request"):
        times[name].append(seconds_of(lambda: probe(sets[0], sets[1], folder / "probes/abmilp", plan)))


def extracted(encoder: Encoder, images: ImageSet, out: Path) -> FeatureStore:
    store = update(Request.resolve(encoder, images), out, Settings(workers=2))
    assert store is not None
    return store


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def estimate_imagenet(n: int, images: ImageSet) -> None:
    """What a check of ImageNet's training images would take here, from the rate of a ViT-B on a few small images."""
    encoder = load_encoder("vit_base_patch16_224", random_seed=0)
    few, folder = images.part(range(n)), Path(tempfile.mkdtemp(prefix="beyondcls-kept-"))
    try:
        extracted(encoder, few, folder / "set")
        n_sampled: list[int] = []
        note = lambda _, check: n_sampled.append(check.n_sampled)  # noqa: E731
        seconds = seconds_of(lambda: update(Request.resolve(encoder, few), folder / "set", Settings(workers=2, checked=note)))
        rate = n_sampled[0] / seconds
        tokens = FeatureStore.open(folder / "set").tokens("patch")
        n_shards = math.ceil(IMAGENET / shard_rows_of(math.prod(tokens.shape[1:]) * 2, IMAGENET))
    finally:
        shutil.rmtree(folder)
    sampled = PER_SHARD * n_shards
    print(
        f"ViT-B/16: {rate:.1f} images/s through a check ({torch.get_num_threads()} threads); of ImageNet {sampled:,} images of "
        f"{n_shards} shards: {sampled / rate:,.0f} s, all {IMAGENET:,} at that rate {IMAGENET / rate / 3600:,.0f} hours"
    )


if __name__ == "__main__":
    main()
