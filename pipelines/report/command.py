"""`beyondcls report`: tables, figures and one page from what the other stages wrote."""

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
    """Write a self-contained page: accuracies, attention statistics, and where the aggregators look."""
    raise SystemExit("…")
