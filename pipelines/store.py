"""`beyondcls store`: looking at feature sets."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at feature sets.")


@app.command()
def info(path: Annotated[Path, typer.Argument(help="folder of a feature set")]) -> None:
    """Print key, encoder, arrays, shapes and bytes."""
    from store import FeatureStore

    store = FeatureStore.open(path)
    typer.echo(f"{path}: {store.attributes['encoder']}, {len(store):,} images, key {store.spec.key}")
    for name, value in store.spec.to_dict().items():
        typer.echo(f"  {name}: {value}")
    for array in store.arrays.values():
        typer.echo(f"  {array.name:40} {array.dtype!s:8} {list(array.shape)} {array.nbytes / 1e6:,.1f} MB")


@app.command()
def verify(path: Annotated[Path, typer.Argument(help="folder of a feature set")]) -> None:
    """Read every shard and compare it with its digest; list the damaged ones and fail if there are any."""
    from pipelines.progress import progress_bar
    from store import FeatureStore
    from store import verify as check

    store = FeatureStore.open(path)
    bad = []
    with progress_bar(f"verify {path}", sum(a.layout.n_shards for a in store.arrays.values()), "shards") as progress:
        for _, problem in check(store):
            progress(1)
            bad += [problem] if problem else []
    for problem in bad:
        typer.echo(problem, err=True)
    typer.echo(f"{path}: {len(bad)} damaged shards")
    if bad:
        raise typer.Exit(1)
