"""What storing tokens in fewer bits costs in accuracy: the quickstart's heads from features in float16 and in another dtype.

    python -m benchmarks.dtypes CIFAR10 [--dtype int8] [--epochs 40]
    python -m benchmarks.dtypes --quick

CIFAR10 is a folder where torchvision keeps (or may download) CIFAR-10, or an .npz with arrays x, y, xt, yt. Each quickstart
encoder is extracted in both dtypes; [cls], the average patch and AbMILP are trained from each on the quickstart's 5,000
training images, 3 seeds, the same order and initialisation, as params.yaml says, and measured on all 10,000 test images: of the
quickstart's 1,000 a single one is 0.1 points, and which of the doubtful ones a head gets right changes with any rounding.
Prints top-1 in percent, and ends with one line of JSON: the largest difference of the means in points,
`int8_vs_float16_points`.
"""

import argparse
import tempfile
from pathlib import Path

import yaml

from benchmarks.timing import ROOT, conclude
from extract.datasets import ImageSet, open_images
from extract.encoders import load_encoder
from extract.run import extract
from pipelines.process.device import keep_freed_memory
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from probe.run import probe
from quickstart import cut
from store import FeatureStore

HEADS = ("cls", "average", "abmilp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="one encoder, 300 images, 3 epochs: under a minute, and no evidence"
    )
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--epochs", type=int, help="of params.yaml by default")
    parser.add_argument("cifar10", type=Path, nargs="?", help="CIFAR-10, for all its test images; --quick needs none")
    given = parser.parse_args()
    if given.cifar10 is None and not given.quick:
        parser.error("where is CIFAR-10? Give a folder for torchvision, which downloads it, or an .npz; or --quick")
    keep_freed_memory()
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    training = {name: value for name, value in params["probe"].items() if name != "seeds"}
    if given.epochs or given.quick:
        training |= {"epochs": given.epochs or 3, "warmup_epochs": 1}
    plans = {name: HeadPlan(HeadSpec(name), Recipe(**training), tuple(params["probe"]["seeds"])) for name in HEADS}
    largest = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        sets = images(given.cifar10, Path(scratch)) if given.cifar10 else few_images()
        for name in list(params["encoders"])[: 1 if given.quick else None]:
            reached = {dtype: accuracies(name, sets, dtype, plans) for dtype in ("float16", given.dtype)}
            for head in HEADS:
                (one, spread), (other, other_spread) = (reached[dtype][head] for dtype in reached)
                largest = max(largest, abs(other - one))
                both = f"float16 {one:.2f} ± {spread:.2f}, {given.dtype} {other:.2f} ± {other_spread:.2f}"
                print(f"{name} {head}: {both}: {other - one:+.2f}", flush=True)
    conclude({f"{given.dtype}_vs_float16_points": largest}, not given.quick)


def images(cifar10: Path, scratch: Path) -> list[ImageSet]:
    """The quickstart's training images, and all test images."""
    cut.main(cifar10, scratch, test=1000)  # of each class
    return [open_images(str(scratch / split)) for split in ("train", "test")]


def few_images() -> list[ImageSet]:
    sets = [open_images(str(ROOT / "quickstart/data/cifar10" / split)) for split in ("train", "test")]
    return [ImageSet(s.source, s.samples[:n], s.classes) for s, n in zip(sets, (300, 100), strict=True)]


def accuracies(name: str, sets: list[ImageSet], dtype: str, plans: dict[str, HeadPlan]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation over seeds of top-1 of each head, percent."""
    encoder = load_encoder(name)
    with tempfile.TemporaryDirectory() as scratch:
        stores: list[FeatureStore] = []
        for images, split in zip(sets, ("train", "test"), strict=True):
            store = extract(encoder, images, Path(scratch) / split, statistics=(), maps=False, dtype=dtype)
            assert store is not None
            stores.append(store)
        written = probe(stores[0], stores[1], Path(scratch) / "probes", plans)
    return {head: (metrics["top1"]["mean"], metrics["top1"]["std"]) for head, metrics in written.items()}


if __name__ == "__main__":
    main()
