"""How many random crops of each training image to keep: accuracy against their number, up to fresh ones in every epoch.

    python -m pipelines.quickstart.views --features FOLDER --out quickstart/studies/views

Of each encoder in params.yaml it extracts 2,000 of the quickstart's training images with 16 crops into FOLDER, unless they are
there, and trains [cls], average and AbMILP as `probe` in params.yaml says: from the evaluation crop alone, from 1, 2, 4, 8 and
16 stored crops, and with the encoder in the loop, which shows in every epoch a crop of each image that was never shown before.
All are measured on the evaluation crops of the test images. Writes OUT/ENCODER/HEAD-CROPS/metrics.json, which the report draws.
"""

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from extract.datasets import ImageSet, open_images
from extract.encoders import Encoder, load_encoder
from extract.run import extract
from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.params import read_params, section
from pipelines.process.progress import progress_bar
from probe.evaluate import evaluate
from probe.grid import HeadPlan, Member
from probe.result_files import METRICS, over_seeds, read_result, write_result
from probe.run import probe
from probe.sources import Source
from probe.stack import Stack
from probe.train import Family, train
from store import FeatureStore
from store.format.pretraining import NAMES

HEADS = ("cls", "average", "abmilp")
STORED = (0, 1, 2, 4, 8, 16)  # crops; 0: the evaluation crop alone
FRESH = "fresh"
# What does not depend on the crops.
ALIKE = (
    *("encoder", *NAMES, "aggregator", "options", "normalisation", "final_norm", "init", "block", "features", "recipe"),
    *("seeds", "n_training", "n_test", "test_images", "n_tokens", "n_classes", "n_parameters", "cost"),
)


@dataclass
class FreshCrops:
    """Training batches with the encoder in the loop: in the nth epoch the nth random crop of every image.

    Attributes:
        block: whose tokens are given, as "patch" [B, T, D] and "cls" [B, D], float32.
        n_epochs: that were begun.
    """

    encoder: Encoder
    images: ImageSet
    labels: np.ndarray
    batch_size: int
    block: int
    n_epochs: int = field(default=0, init=False)

    @property
    def n_rows(self) -> int:
        return len(self.images)

    def epoch(self, seed: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
        """All images in an order drawn by `seed`."""
        self.n_epochs += 1
        order = np.random.default_rng(seed).permutation(self.n_rows)
        with ThreadPoolExecutor(2) as threads:
            for begin in range(start * self.batch_size, self.n_rows, self.batch_size):
                rows = order[begin : begin + self.batch_size]
                encoded = self.encoder(torch.stack(list(threads.map(self._crop, rows.tolist()))), [self.block])
                tokens = {"patch": encoded.patch[self.block], "cls": encoded.cls[self.block]}
                batch = {kind: values.clone() for kind, values in tokens.items()}  # autograd takes no tensors of inference mode
                yield {**batch, "label": torch.from_numpy(self.labels[rows]), "row": torch.from_numpy(rows)}

    def _crop(self, row: int) -> Tensor:
        return self.encoder.views.cut(self.images.image(row), self.images.samples[row].id, self.n_epochs)[0]


def train_on_fresh(crops: FreshCrops, test: FeatureStore, plans: Mapping[str, HeadPlan]) -> dict[str, list[dict[str, float]]]:
    """Measures of the test images after the last epoch, of each seed, by head; all heads train on the same crops."""
    recipe = next(iter(plans.values())).recipe
    assert all(plan.recipe == recipe for plan in plans.values()), plans
    judge, families = Source(test, block=crops.block), []
    for name, plan in plans.items():
        heads = [plan.head.build(judge.dim, judge.n_patches, test.n_classes, seed=seed) for seed in plan.seeds]
        rates = torch.full((len(heads),), recipe.base_lr, dtype=torch.float64)
        names = [Member(name, recipe.base_lr, recipe.weight_decay, seed) for seed in plan.seeds]
        families.append(Family(Stack(heads, torch.device("cpu")), rates, torch.full_like(rates, recipe.weight_decay), names))
    with progress_bar(f"{crops.encoder.name} in the loop", recipe.epochs, "epochs") as progress:
        train(families, crops, None, recipe, after_epoch=lambda _: progress(1))
    loader = judge.loader(["patch", "cls"], batch_size=recipe.batch_size, shuffle=False)
    measured = evaluate([family.stack for family in families], loader)
    return {name: of_head.measures for name, of_head in zip(plans, measured, strict=True)}


def keep(folder: Path, measures: Mapping[str, Any]) -> None:
    """Write metrics.json and description.json, with the command that measures them again."""
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "pipelines.quickstart.views", *sys.argv[1:]])
    write_result(folder / METRICS, {**measures, "command": command})


def measure(
    encoder: Encoder,
    images: Mapping[str, ImageSet],
    features: Path,
    out: Path,
    plans: Mapping[str, HeadPlan],
    stored: Sequence[int],
) -> None:
    """All numbers of crops for one encoder; those that are measured already are left as they are."""
    stores = {}
    for split, n_views in (("train", 1 + max(stored)), ("test", 1)):
        with progress_bar(f"{encoder.name}, {split}", n_views * len(images[split]), "images") as progress:
            store = extract(
                encoder,
                images[split],
                features / f"{encoder.name}-{split}",
                statistics=(),
                maps=False,
                views=n_views,
                progress=progress,
            )
        assert store is not None  # one task alone
        stores[split] = store

    def is_kept(crops: int | str) -> bool:
        return all((out / f"{head}-{crops}/metrics.json").is_file() for head in plans)

    for n_crops in (n for n in stored if not is_kept(n)):
        with tempfile.TemporaryDirectory() as scratch:
            written = probe(stores["train"], stores["test"], Path(scratch) / "probes", plans, views=1 + n_crops, say=typer.echo)
        for head, measures in written.items():
            keep(out / f"{head}-{n_crops}", measures)
    if is_kept(FRESH):
        return
    recipe, block = next(iter(plans.values())).recipe, stores["test"].spec.blocks[-1]
    crops = FreshCrops(encoder, images["train"], np.asarray(stores["train"].labels), recipe.at_once, block)
    by_head = train_on_fresh(crops, stores["test"], plans)
    for head, of_seeds in by_head.items():
        of_stored = read_result(out / f"{head}-{stored[0]}" / METRICS)
        reached = {name: over_seeds([measures[name] for measures in of_seeds]) for name in of_seeds[0]}
        of_head = {name: of_stored[name] for name in ALIKE if name in of_stored}  # older ones lack some
        keep(out / f"{head}-{FRESH}", of_head | reached | {"augmentation": {"n_crops": FRESH, "evaluation_view": False}})


def main(
    features: Annotated[Path, typer.Option(help="folder for the feature sets with all crops (0.9 GB an encoder)")],
    out: Annotated[Path, typer.Option(help="folder for ENCODER/HEAD-CROPS/metrics.json")] = Path("quickstart/studies/views"),
    params: Annotated[Path, typer.Option(help="whose encoders, heads and recipe are used")] = Path("params.yaml"),
    encoder: Annotated[list[str] | None, typer.Option(help="one of them; repeat it for more; all if not given")] = None,
    n_images: Annotated[int, typer.Option(min=2, help="training images, the first ones")] = 2000,
) -> None:
    """Measure accuracy against the number of crops."""
    values = read_params(params)
    plans, _ = plans_and_run(HEADS, values, {}, {})
    data = Path(values["data"]) / next(iter(datasets_of(values)))
    images = {split: open_images(str(data), split=split) for split in ("train", "test")}
    training = images["train"]
    images["train"] = ImageSet(training.source, training.samples[:n_images], training.classes)
    for name in encoder or list(values["encoders"]):
        loaded = load_encoder(name, **section(values, "encoders", name))
        measure(loaded, images, features, out / name, plans, STORED)
        print(f"{out / name}: {', '.join(HEADS)} from {', '.join(map(str, STORED))} and fresh crops")


if __name__ == "__main__":
    typer.run(main)
