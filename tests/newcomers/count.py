"""`beyondcls store count`: how many feature sets there are."""

from pathlib import Path
from typing import Annotated

import typer


def count(root: Annotated[Path, typer.Argument(help="folder to look through")] = Path("features")) -> None:
    """Print how many feature sets lie below a folder."""
    from pipelines.store.find import feature_sets
    from store import StoreError

    if not root.is_dir():
        raise StoreError(f"there is no folder {root}; name one that holds feature sets")
    typer.echo(f"{len(list(feature_sets(root))):,} feature sets below {root}")
