"""`beyondcls store verify | repair`: checking every shard of a feature set, and repairing damaged ones."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters.extraction import IMAGES, LOADING, RUNNING
from pipelines.parameters.options import select_options, takes_options
from pipelines.parameters.params import without_none
from pipelines.process.progress import progress_bar
from pipelines.store.look import FeatureSet
from store import FeatureSpec, FeatureStore, StoreError
from store import verify as check
from store.format.layout import kind_of
from store.format.unfinished import is_stub
from store.places import LocalFolder

# Without these, a set names its encoder and how it was loaded, and images are opened as they look.
AS_EXTRACTED = {
    **{name: option for name, option in LOADING.items() if name not in ("arguments", "weights")},
    **select_options(IMAGES, ("form", "split", "classes")),
    "batch_size": RUNNING["batch_size"],
}


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
    """Problems of a feature set, one message for each damaged shard."""
    store = FeatureStore.describe(path)
    if isinstance(store.place, LocalFolder) and is_stub(store.path):
        raise StoreError(f"{path} is a stub: its arrays are at store.root; give ROOT/{store.path.name}-{store.spec.key}")
    stored = [name for name in store.attributes["arrays"] if store.place.has_folder(kind_of(name))]
    bad: list[str] = []
    with progress_bar(f"verify {path}", len(stored), "arrays") as progress:
        previous = ""
        for name, _, problem in check(path):
            progress(name != previous)
            previous = name
            bad += [problem] if problem else []
    return bad


@takes_options(AS_EXTRACTED)
def repair(
    path: Annotated[Path, typer.Argument(help="folder of a feature set")],
    data: Annotated[str | None, typer.Option(help="the images it was made from; without, nothing is changed")] = None,
    encoder: Annotated[str | None, typer.Option(help="its encoder; by default the one that the set names")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file with encoders.NAME")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    **given: Any,
) -> None:
    """List what is damaged, and the command that extracts it again; with --data, run that command.

    Images and encoder are named as they were at extraction. Sound shards stay as they are: on the machine that made it, the
    result is the same to the last byte.
    """
    from pipelines import extract

    bad = _damaged(str(path))
    store = FeatureStore.describe(path)
    digests = store.attributes["arrays"]
    options = {"encoder": store.attributes["encoder"], **_options_of_spec(store.spec)}
    if store.attributes["invalid"] or store.attributes["problems"]:
        options["on_error"] = "record"
    for problem in bad:
        typer.echo(problem)
    if not bad:
        typer.echo(f"{path}: nothing is damaged")
        return
    options |= without_none(encoder=encoder, params=params, **given)
    typer.echo(_command(path, data or "IMAGES", options, device))
    if data is None:
        typer.echo("give --data with the images it was made from to run this")
        raise typer.Exit(1)
    extract.main(**options, data=data, out=path, device=device, repair=True)
    mended = FeatureStore.describe(path).attributes["arrays"]
    differing = [name for name in digests if mended.get(name) != digests[name]]
    if differing:
        typer.echo(f"{path}: sound, but not the same bytes as before in {', '.join(differing)}; another machine or batch size?")
    else:
        typer.echo(f"{path}: sound, and the same bytes as before")


def _options_of_spec(spec: FeatureSpec) -> dict[str, Any]:
    """Options of `beyondcls extract` that give a spec."""
    amp = {"bfloat16": "bf16", "float16": "fp16"}.get(spec.compute_dtype)
    return {
        **({"views": spec.n_views} if spec.n_views > 1 else {}),
        **({"drop_path": spec.drop_path} if spec.drop_path else {}),
        **({"amp": amp} if amp else {}),
        "blocks": ",".join(map(str, spec.blocks)),
        "statistics": ",".join(spec.statistics) or "none",
        "maps": bool(spec.maps),
        "dtype": spec.dtype,
    }


def _command(path: Path, data: str, options: dict[str, Any], device: str) -> str:
    """The shell command of the extraction that repairs `path`."""
    command = f"beyondcls extract --repair --data {shlex.quote(data)} --out {shlex.quote(str(path))}"
    for name, value in {**options, **({"device": device} if device != "auto" else {})}.items():
        flag = name.replace("_", "-")
        command += f" --{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f" --{flag} {shlex.quote(str(value))}"
    return command
