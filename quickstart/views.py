"""How many random crops of each training image to keep: accuracy against their number, up to fresh ones in every epoch.

    python -m quickstart.views --features FOLDER --out quickstart/studies/views

Of each encoder in params.yaml it extracts the first 2,000 training images of a data set there (--dataset, --n-images) with 16
crops into FOLDER, unless they are there, and trains [cls], average and AbMILP (--head) as `probe` in params.yaml says: from the
evaluation crop alone, from 1, 2, 4, 8 and 16 stored crops, and with the encoder in the loop, which shows in every epoch a crop
of each image that was never shown before. All are measured on the evaluation crops of the test images. Writes
OUT/ENCODER/HEAD-CROPS/metrics.json, which the report draws: of your own data with --params and --out studies/DATASET/views.
"""

import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from extract.datasets import ImageSet, open_images
from extract.encoders import Encoder, load_encoder
from extract.run import extract
from pipelines.parameters.datasets import datasets_of
from pipelines.parameters.extraction import loading_of
from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.params import read_params
from pipelines.parameters.requested import requested_images
from pipelines.probing.loop import EncoderLoop
from pipelines.process.progress import progress_bar
from probe.grid import HeadPlan
from probe.notes import FRESH
from probe.result_files import METRICS, write_result
from probe.run import probe

HEADS = ("cls", "average", "abmilp")
STORED = (0, 1, 2, 4, 8, 16)  # crops; 0: the evaluation crop alone


def keep(folder: Path, measures: Mapping[str, Any]) -> None:
    """Write metrics.json and description.json, with the command that measures them again."""
    folder.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "-m", "quickstart.views", *sys.argv[1:]])
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

    for crops in (*stored, FRESH):
        if all((out / f"{head}-{crops}" / METRICS).is_file() for head in plans):
            continue
        shown: dict[str, Any] = (
            {"views": 1 + crops} if isinstance(crops, int) else {"loop": EncoderLoop(encoder, images["train"], stores["train"])}
        )
        with tempfile.TemporaryDirectory() as scratch:
            written = probe(
                stores["train"], stores["test"], Path(scratch) / "probes", plans, bars=progress_bar, say=typer.echo, **shown
            )
        for head, measures in written.items():
            keep(out / f"{head}-{crops}", measures)


def main(
    features: Annotated[Path, typer.Option(help="folder for the feature sets with all crops (0.9 GB an encoder)")],
    out: Annotated[Path, typer.Option(help="folder for ENCODER/HEAD-CROPS/metrics.json")] = Path("quickstart/studies/views"),
    params: Annotated[Path, typer.Option(help="whose encoders, heads and recipe are used")] = Path("params.yaml"),
    dataset: Annotated[str | None, typer.Option(help="whose images, in that file; its first one if not given")] = None,
    encoder: Annotated[list[str] | None, typer.Option(help="one of them; repeat it for more; all if not given")] = None,
    head: Annotated[list[str] | None, typer.Option(help="in that file, or an aggregator; repeat it for more")] = None,
    n_images: Annotated[int, typer.Option(min=2, help="training images, the first ones")] = 2000,
) -> None:
    """Measure accuracy against the number of crops."""
    values = read_params(params)
    plans, _ = plans_and_run(head or HEADS, values, {}, {})
    dataset, images = dataset or next(iter(datasets_of(values))), {}
    for split in ("train", "test"):
        source, opening = requested_images("these encoders", None, dataset, params, {"split": split})
        images[split] = open_images(source, **opening)
    training = images["train"]
    images["train"] = ImageSet(training.source, training.samples[:n_images], training.classes)
    for name in encoder or list(values["encoders"]):
        loaded = load_encoder(name, **loading_of(values, name))
        measure(loaded, images, features, out / name, plans, STORED)
        print(f"{out / name}: {', '.join(plans)} from {', '.join(map(str, STORED))} and fresh crops")


if __name__ == "__main__":
    typer.run(main)
