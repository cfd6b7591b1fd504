"""`beyondcls report`: tables, figures and one page from what the other stages wrote."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def main(
    probes: Annotated[Path, typer.Option(help="folder that holds ENCODER/HEAD/metrics.json")] = Path("probes"),
    attention: Annotated[Path, typer.Option(help="folder that holds ENCODER/statistics.csv")] = Path("attention"),
    data: Annotated[str, typer.Option(help="the test images, for the overlays")] = "quickstart/data/test",
    out: Annotated[Path, typer.Option(help="folder for index.html and table.csv")] = Path("report"),
    n_examples: Annotated[int, typer.Option(min=0, help="images with overlays")] = 6,
) -> None:
    """Write a self-contained page: accuracies, attention statistics, and where the aggregators look.

    Writes index.html, table.csv and table.md, and prints the accuracies.
    """
    from rich.console import Console

    from pipelines.report.collect import collect
    from pipelines.report.overlays import draw_overlays
    from pipelines.report.page import render
    from pipelines.report.tables import to_csv, to_markdown, to_terminal

    inputs = collect(probes, attention)
    page = render(inputs, draw_overlays(inputs, data, n_examples))
    out.mkdir(parents=True, exist_ok=True)
    for name, content in (("table.csv", to_csv(inputs)), ("table.md", to_markdown(inputs)), ("index.html", page)):
        (out / name).write_text(content, encoding="utf-8", newline="\n")
    Console(width=None if sys.stdout.isatty() else 160).print(to_terminal(inputs))
    typer.echo(f"report: {out / 'index.html'}")
