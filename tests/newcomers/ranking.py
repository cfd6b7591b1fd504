"""`beyondcls ranking`: the heads of one encoder, the best first."""

from pathlib import Path
from typing import Annotated

import typer


def main(
    probes: Annotated[Path, typer.Option(help="folder that holds HEAD/metrics.json of one encoder")],
    out: Annotated[Path, typer.Option(help="the table to write (.csv)")],
) -> None:
    """Order the heads of one encoder by the mean of top-1 over seeds, and write the table."""
    import csv
    import json

    from store import BeyondClsError

    files = sorted(probes.glob("*/metrics.json"))
    if not files:
        raise BeyondClsError(f"there is no HEAD/metrics.json in {probes}; probe first, and name the folder of one encoder")
    rows = [(file.parent.name, json.loads(file.read_text())["top1"]) for file in files]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        csv.writer(file).writerows([("head", "top1"), *sorted(rows, key=lambda row: -row[1])])
