"""`beyondcls store`: looking at feature sets, checking and mending them."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Look at feature sets, check and mend them.")
FeatureSet = Annotated[str, typer.Argument(help="folder of a feature set, or its address (s3://…)")]


@app.command()
def info(path: FeatureSet) -> None:
    """Print key, encoder, arrays, shapes and bytes."""
    from store import FeatureStore

    store = FeatureStore.open(path)
    typer.echo(f"{path}: {store.attributes['encoder']}, {len(store):,} images, key {store.spec.key}")
    for name, value in store.spec.to_dict().items():
        typer.echo(f"  {name}: {value}")
    for array in store.arrays.values():
        stored = array.layout.codec or array.layout.dtype
        typer.echo(f"  {array.name:40} {stored:12} {list(array.shape)} {array.layout.n_shards} shards")


@app.command()
def verify(path: FeatureSet) -> None:
    """Read every shard and compare it with its digests; list the damaged ones and fail if there are any."""
    bad = _damaged(path)
    for problem in bad:
        typer.echo(problem, err=True)
    typer.echo(f"{path}: {len(bad)} damaged shards")
    if bad:
        typer.echo(f"mend them: beyondcls store repair {shlex.quote(path)}", err=True)
        raise typer.Exit(1)


def _damaged(path: str) -> list[str]:
    """What is wrong with a feature set, a message for each shard."""
    from pipelines.progress import progress_bar
    from store import FeatureStore
    from store import verify as check

    n_arrays = len(FeatureStore.describe(path).attributes["arrays"])
    bad: list[str] = []
    with progress_bar(f"verify {path}", n_arrays, "arrays") as progress:
        last = ""
        for name, _, problem in check(path):
            progress(name != last)
            last = name
            bad += [problem] if problem else []
    return bad


@app.command()
def repair(
    path: Annotated[Path, typer.Argument(help="folder of a feature set")],
    data: Annotated[str | None, typer.Option(help="the images it was made from; without, nothing is changed")] = None,
    encoder: Annotated[str | None, typer.Option(help="its encoder; by default, the one that it names")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file with encoders.NAME")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="local weights, where the encoder needs them")] = None,
    model: Annotated[str | None, typer.Option(help="timm architecture, where the encoder needs it")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """List what is damaged, and the command that extracts it again; with --data, run that command.

    What is sound is kept as it is. On the machine that made the set, the result is the same to the last byte.
    """
    from pipelines import extract
    from store import BeyondClsError, FeatureStore, StoreError

    options: dict[str, Any] = {"encoder": encoder, "params": params, "checkpoint": checkpoint, "model": model, "device": device}
    digests: dict[str, str] = {}
    try:
        bad = _damaged(str(path))
        store = FeatureStore.describe(path)
        digests = store.attributes["arrays"]
        options["encoder"] = encoder or store.attributes["encoder"]
        options |= {
            "blocks": ",".join(map(str, store.spec.blocks)),
            "statistics": ",".join(store.spec.statistics) or "none",
            "maps": bool(store.spec.maps),
            "dtype": store.spec.dtype,
            "on_error": "record" if store.attributes["invalid"] or store.attributes["problems"] else "raise",
        }
    except StoreError as error:
        bad = [str(error)]
    for problem in bad:
        typer.echo(problem)
    if not bad:
        typer.echo(f"{path}: nothing is damaged")
        return
    command = f"beyondcls extract --repair --data {shlex.quote(data or 'IMAGES')} --out {shlex.quote(str(path))}"
    for name, value in options.items():
        if isinstance(value, bool):
            command += f" --{'' if value else 'no-'}{name}"
        elif value is not None and (name, value) != ("device", "auto"):
            command += f" --{name.replace('_', '-')} {shlex.quote(str(value))}"
    typer.echo(command)
    if data is None:
        typer.echo("give --data with the images it was made from to run this")
        raise typer.Exit(1)
    if options["encoder"] is None:
        raise BeyondClsError(f"{path} does not tell its encoder any more; name it with --encoder")
    extract.main(**options, data=data, out=path, repair=True)
    mended = FeatureStore.describe(path).attributes["arrays"]
    other = [name for name in digests if mended.get(name) != digests[name]]
    if other:
        typer.echo(f"{path}: sound, but not the same bytes as before in {', '.join(other)}; another machine or batch size?")
    else:
        typer.echo(f"{path}: sound" + (", and the same bytes as before" if digests else ""))
