"""`beyondcls report`: tables, figures and one page from what the other stages wrote."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def main(
    probes: Annotated[Path, typer.Option(help="folder that holds ENCODER/HEAD/metrics.json")] = Path("probes"),
    datasets: Annotated[
        list[Path],
        typer.Option(
            help="folder that holds DATA/ENCODER/HEAD/metrics.json: probes on several data sets to compare; repeat it for more"
        ),
    ] = [Path("datasets")],  # noqa: B006
    attention: Annotated[Path, typer.Option(help="folder that holds ENCODER/statistics.csv")] = Path("attention"),
    studies: Annotated[Path, typer.Option(help="folder that holds STUDY/ENCODER/HEAD/metrics.json")] = Path("studies"),
    divergence: Annotated[Path, typer.Option(help="folder that holds ENCODER, as divergence writes it")] = Path("divergence"),
    localisation: Annotated[Path, typer.Option(help="folder that holds ENCODER, as localisation writes it")] = Path(
        "localisation"
    ),
    data: Annotated[str, typer.Option(help="the test images, for the overlays")] = "quickstart/data/cifar10/test",
    split: Annotated[str | None, typer.Option(help="of these, as `beyondcls extract --split` takes it")] = None,
    localised: Annotated[
        str | None, typer.Option(help="the images that were localised, to draw boxes over  [default: those of --data]")
    ] = None,
    localised_split: Annotated[str | None, typer.Option(help="of these")] = None,
    out: Annotated[Path, typer.Option(help="folder for index.html, tables and figures")] = Path("report"),
    n_examples: Annotated[int, typer.Option(min=0, help="images with overlays")] = 6,
    encoder: Annotated[list[str] | None, typer.Option(help="show this encoder; repeat it for more; all if not given")] = None,
    image: Annotated[list[str] | None, typer.Option(help="id of an image with overlays; repeat it for more")] = None,
    draw: Annotated[int | None, typer.Option(help="seed: draw the images with overlays at random")] = None,
) -> None:
    """Write a self-contained page: accuracies, attention statistics, and where the aggregators look.

    Writes index.html, metrics.json, tables (.csv, .tex, .md) and figures (.svg, .png), and prints the accuracies.
    """
    from rich.console import Console

    from pipelines.report.collect import Examples, Folders, collect
    from pipelines.report.files import write
    from pipelines.report.formats.terminal_table import to_terminal
    from pipelines.report.sections import sections
    from pipelines.report.sections.accuracy import top1
    from pipelines.report.subset import subset
    from store import BeyondClsError

    if image and draw is not None:
        raise BeyondClsError(
            f"--image {image[0]} and --draw {draw} both choose the images, expected one of them; drop the other"
        )
    inputs = collect(
        Folders(probes, attention, studies, divergence, localisation, data, split, tuple(datasets), localised, localised_split),
        Examples(n_examples, tuple(image or ()), draw),
    )
    if encoder:
        inputs = subset(inputs, encoder)
    write(out, inputs, sections(inputs))
    Console(width=None if sys.stdout.isatty() else 160).print(to_terminal(top1(inputs)))
    typer.echo(f"report: {out / 'index.html'}")
