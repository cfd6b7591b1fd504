"""`beyondcls transfer`: whether an aggregator's weights are useful on other images than those they were learned on."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features


def main(
    probe: Annotated[Path, typer.Option(help="PROBES/ENCODER/HEAD: its aggregators are taken as they are, a seed each")],
    features: Annotated[str, typer.Option(help="feature set of other training images, by the same encoder")],
    test: Annotated[str, typer.Option(help="feature set of their test images")],
    out: Annotated[Path, typer.Option(help="folder for probes, metrics and curves, e.g. probes/DATA/ENCODER/HEAD-of-OTHER")],
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """Train a new classifier on what a trained aggregator pools from the images of another data set.

    The classifier is trained by the recipe of the probe. The result is a probe like any other: the report shows it among the
    heads of its data set, next to the head that was trained on these images and the plain average.
    """
    from pipelines.process.device import choose_device
    from probe.transfer import transfer

    stores = open_features(features, params), open_features(test, params)
    command = recorded_command()
    measures = transfer(probe, *stores, out, device=choose_device(device), say=typer.echo, notes={"command": command})
    measure = measures["map" if "map" in measures else "top1"]
    typer.echo(f"{out}: {measure['mean']:.2f} ± {measure['std']:.2f} % with {measures['aggregator']} of {probe}")
