"""`beyondcls compare`: two folders of results, or two commits, side by side."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.comparing.differences import Compared

DIFFERENT = 1  # exit status


def main(
    a: Annotated[
        str, typer.Argument(help="a project, a folder of probes, the folder of one; or a commit of the project in this folder")
    ],
    b: Annotated[str, typer.Argument(help="the same, to compare with it; differences are B − A")],
    show_all: Annotated[
        bool, typer.Option("--all", help="show equal results too, and all measures, not only the first of each result")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="folder for the tables as .csv, .tex and .md")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="exit with 1 if results differ, as git diff does")] = False,
) -> None:
    """Compare results of two commits, machines or feature sets: measures, and what differs in how they were made.

    Results are matched by where they are: in DATASET/ENCODER/HEAD of probes, studies/…, segmentation/…, detection/…,
    localisation/… and blocks/… of a project. Differences have 95 % intervals over test images, paired where they are the same,
    and over seeds, where both results record how they vary with the images; others have the spread over seeds. Equal results
    are counted. Below is what differs between results that both have: options and recipes, keys of feature sets, versions of
    packages, machines.

    Of a commit, results are taken from DVC's cache (`dvc fetch --all-commits` fills it).
    """
    from pipelines.comparing.differences import compare_results, descriptions_table, differences_in_descriptions, measures_table
    from pipelines.comparing.places import folder_of
    from pipelines.process.terminal import SafeConsole
    from pipelines.report.formats import FORMATS
    from pipelines.report.formats.terminal_table import to_terminal
    from pipelines.report.rows import results_in
    from store import BeyondClsError

    with ExitStack() as stack:
        results = [results_in(stack.enter_context(folder_of(name))) for name in (a, b)]
        common = {*results[0]} & {*results[1]}
        if not any(results[0][place].groups for place in common):
            places = [next(place for place, result in of_one.items() if result.groups) for of_one in results]
            raise BeyondClsError(
                f"{a} and {b} have no result in common: the first has {places[0]} and others, the second {places[1]}; name "
                "folders that hold the same things, such as two projects, or the folders of one data set in both"
            )
        rows = compare_results(*results)
    shown = [row for row in rows if show_all or (row.first and not row.equal)]
    described = differences_in_descriptions(*results)
    tables = [measures_table(shown, a, b), descriptions_table(described, common, a, b)]
    console = SafeConsole(width=None if sys.stdout.isatty() else 200)
    for table in tables:
        if table.rows:
            console.print(to_terminal(table))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for table in tables:
            for suffix, to_text in FORMATS.items():
                (out / f"{table.name}.{suffix}").write_text(to_text(table), encoding="utf-8", newline="\n")
        typer.echo(f"tables: {out}")
    for line in _format_counts(rows, a, b):
        typer.echo(line)
    if exit_code and any(not row.equal for row in rows):
        raise typer.Exit(DIFFERENT)


def _format_counts(rows: "list[Compared]", a: str, b: str) -> list[str]:
    """How many results are equal, differ, or are in one of the two alone."""
    by_place: dict[str, list[Compared]] = {}
    for row in rows:
        by_place.setdefault(row.place, []).append(row)
    alone = {
        name: sum(all(getattr(row, other) is None for row in of_one) for of_one in by_place.values())
        for name, other in ((a, "b"), (b, "a"))
    }
    n_equal = sum(all(row.equal for row in of_one) for of_one in by_place.values())
    n_others = len(by_place) - n_equal - sum(alone.values())
    lines = [f"{n_equal} of {len(by_place)} results are equal, {n_others} differ"]
    return lines + [f"{n} {'is' if n == 1 else 'are'} only in {name}" for name, n in alone.items() if n]
