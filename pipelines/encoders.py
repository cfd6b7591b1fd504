"""`beyondcls encoders`: the encoders that can be extracted, and the source and licence of their weights."""

from pathlib import Path
from typing import Annotated

import typer

from store import BeyondClsError


def main(
    pattern: Annotated[str, typer.Argument(help="part of a name")] = "",
    record: Annotated[
        Path | None,
        typer.Option(help="a .csv of sources and digests, such as paper/checkpoints.csv: load those of --params and write it"),
    ] = None,
    params: Annotated[Path, typer.Option(help="the parameter file whose encoders --record loads")] = Path("params.yaml"),
) -> None:
    """List encoders: the registry's with their sizes, those of other packages, then timm's models whose weights its hub has.

    Tokens are those of one image; "read at" is the block whose tokens are kept by default, counted from 0. Weights that
    begin with "see" have to be fetched by hand and given as --checkpoint FILE.

    With --record, loads the encoders of a parameter file instead, prints the digests of their weights, for `weights` there, and
    writes them into the list; what cannot be loaded stays as it is there.
    """
    if record is not None:
        _record_digests(record, params, pattern)
        return
    from extract.encoders import ENCODERS, timm_names
    from extract.encoders.pretrained import listing_of
    from pipelines.store.table import table

    cautions: dict[str, list[str]] = {}
    rows = [("name", "parameters", "width", "blocks", "read at", "tokens", "attention", "licence", "weights")]
    for name, entry in ENCODERS.own.items():
        if pattern in name:
            listing = listing_of(entry)
            counts = (f"{listing.n_parameters / 1e6:,.1f} M", str(listing.width), str(listing.n_blocks), str(listing.block))
            rows.append((name, *counts, listing.tokens, "yes" if listing.attends else "no", entry.licence, entry.weights))
            if listing.cls_caution:
                cautions.setdefault(listing.cls_caution, []).append(name)
    if len(rows) > 1:
        typer.echo("\n".join(table(rows, right=(1, 2, 3, 4))))
    for name, entry in ENCODERS.own.items():
        if pattern in name and entry.note:
            typer.echo(f"note: {name}: {entry.note}")
    for caution, names in cautions.items():
        typer.echo(f"note: {', '.join(names)}: {caution}")
    for name, plugin in ENCODERS.plugins().items():
        if pattern in name:
            typer.echo(f"{name}: of the package {plugin.package} {plugin.version}")
            try:
                ENCODERS[name]
            except BeyondClsError as error:
                typer.echo(f"note: {error}")
    for name in timm_names(pretrained=True):
        if pattern in name:
            typer.echo(name)


def _record_digests(file: Path, params: Path, pattern: str) -> None:
    """Load the encoders of a parameter file whose names have the pattern, one after the other, and write their digests."""
    from dataclasses import replace

    from extract.encoders.checkpoints import ListedCheckpoint, read_checkpoints, write_checkpoints
    from pipelines.parameters.extraction import from_params
    from pipelines.parameters.params import read_params, section

    rows, failed = read_checkpoints(file), []
    for name in section(read_params(params), "encoders"):
        loading, _ = from_params(params, name)
        row = ListedCheckpoint.of(name, loading)
        rows.setdefault(name, row)
        if pattern not in name:
            continue
        try:
            rows[name] = replace(row, digest=rows[name].digest).loaded(loading)
            typer.echo(f"{name}: {{ weights: {rows[name].digest} }}")
        except BeyondClsError as error:
            typer.echo(f"{name}: not recorded: {error}", err=True)
            failed.append(name)
    write_checkpoints(file, rows.values())
    if failed:
        raise BeyondClsError(f"{len(failed)} of {len(rows)} in {file} stay as they were: {', '.join(failed)}; see above")
    typer.echo(f"{file}: {len(rows)} encoders")
