"""`beyondcls few-shot`: accuracy from a few images of each class, without gradient steps, block by block."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


def main(
    features: Annotated[str, typer.Option(help="feature set of the training images: its folder, receipt, or address")],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[Path, typer.Option(help="folder for metrics.json and description.json")],
    shots: Annotated[
        str | None,
        typer.Option(help="images of each class, with commas  [default: those of 1,2,5,10 that every class has]"),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=1, help="of these images, the same for every encoder; each is learnt from by itself")
    ] = 5,
    vector: Annotated[
        list[str] | None,
        typer.Option(help="cls, average or pooled; may be repeated  [default: those that both sets have]"),
    ] = None,
    classifier: Annotated[
        str,
        typer.Option(
            help="lsr, least squares as big_vision has them; logistic, regression with C = 1; nearest, the label of the nearest"
        ),
    ] = "lsr",
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """Measure how much a few images of each class tell: top-1 accuracy on all test images, of each vector of each block.

    The ± is over draws. Nothing is encoded: [cls] and the average patch of every block are in sets that were extracted with
    --vectors all. `beyondcls probe --k-shot` trains heads from a few images.
    """
    from pipelines.parameters.options import integers
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.few_shot import few_shot
    from probe.geometry import VECTORS, by_place, vectors_in
    from probe.result_files import METRICS, computed_by, described_images, result_folder, write_result

    stores = open_features(features, params), open_features(test, params)
    result = result_folder(out, stores[1].attributes["encoder"])
    kinds, chosen = vector or list(VECTORS), choose_device(device)
    how = {"shots": shots and integers("--shots", shots), "draws": draws, "classifier": classifier, "device": chosen}
    with progress_bar("few shots", len(vectors_in(stores[1], kinds)), "vectors") as advance:
        measured = list(few_shot(*stores, kinds, **how, advance=advance))  # type: ignore[arg-type]
    n_test = int(stores[1].labelled.sum())
    content = {
        **described_images(stores[1], n_test),
        "features": {"training": stores[0].spec.key, "test": stores[1].spec.key},
        "vectors": measured,
        **computed_by(chosen),
        "command": recorded_command(),
    }
    shown = by_place(measured)
    with result.written() as folder:
        write_result(folder / METRICS, content, shown)
    for place, row in shown.items():
        numbers = (
            f"{name.removeprefix('top1_')} {value['mean']:.1f} ± {value['std']:.1f}"
            for name, value in row.items()
            if name.startswith("top1_")
        )
        typer.echo(f"{place}: {', '.join(numbers)} %")
    typer.echo(f"{out}: {n_test:,} test images")
