"""`beyondcls encoders`: the encoders that can be extracted, and the source and licence of their weights."""

from typing import Annotated

import typer


def main(pattern: Annotated[str, typer.Argument(help="part of a name")] = "") -> None:
    """List encoders: those of the registry with their sizes, then timm's models whose weights its hub has.

    Tokens are those of one image; "read at" is the block whose tokens are kept by default, counted from 0. Weights that
    begin with "see" have to be fetched by hand and given as --checkpoint FILE.
    """
    from extract.encoders import ENCODERS, timm_names
    from extract.encoders.listing import listing_of
    from pipelines.store.table import table

    cautions: dict[str, list[str]] = {}
    rows = [("name", "parameters", "width", "blocks", "read at", "tokens", "attention", "licence", "weights")]
    for name, entry in ENCODERS.items():
        if pattern in name:
            listing = listing_of(entry)
            counts = (f"{listing.n_parameters / 1e6:,.1f} M", str(listing.width), str(listing.n_blocks), str(listing.block))
            rows.append((name, *counts, listing.tokens, "yes" if listing.attends else "no", entry.licence, entry.weights))
            if listing.cls_caution:
                cautions.setdefault(listing.cls_caution, []).append(name)
    if len(rows) > 1:
        typer.echo("\n".join(table(rows, right=(1, 2, 3, 4))))
    for name, entry in ENCODERS.items():
        if pattern in name and entry.note:
            typer.echo(f"note: {name}: {entry.note}")
    for caution, names in cautions.items():
        typer.echo(f"note: {', '.join(names)}: {caution}")
    for name in timm_names(pretrained=True):
        if pattern in name:
            typer.echo(name)
