"""How results are shown: a line for each head, and notes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer


def show_results(written: Mapping[Path, Mapping[str, Any]]) -> None:
    """Print results and their notes; notes on all heads are printed once."""
    notes_by_head = [measures["notes"] for measures in written.values()]
    shared_notes = [note for note in notes_by_head[0] if len(written) > 1 and all(note in notes for notes in notes_by_head)]
    for place, measures in written.items():
        typer.echo(f"{place}: {_summary(measures)}")
        for note in measures["notes"]:
            if note not in shared_notes:
                typer.echo(f"  note: {note}")
    for note in shared_notes:
        typer.echo(f"note on all: {note}")


def _summary(measures: Mapping[str, Any]) -> str:
    """The result of a head: `top-1 71.23 ± 0.12 % over 3 seeds, 10,000 test images`."""
    measure, words = ("map", "mAP") if "map" in measures else ("top1", "top-1")
    reached, n = measures[measure], len(measures["seeds"])
    spread = f"± {reached['std']:.2f} % over {n} seed{'s' * (n > 1)}" if n else f"% by {measures['protocol']['name']}"
    n_crops = measures["augmentation"]["n_crops"]
    crops = f", trained on {n_crops} random crop{'s' * (n_crops != 1)} of each image" if n_crops else ""
    if crops and measures["augmentation"]["evaluation_view"]:
        crops += " and its evaluation crop"
    return f"{words} {reached['mean']:.2f} {spread}, {measures['n_test']:,} test images{crops}"
