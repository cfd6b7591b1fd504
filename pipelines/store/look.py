"""`beyondcls store ls | info | verify`: the feature sets in a folder, the content of one, and whether it is sound."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.process.progress import progress_bar
from pipelines.sharing.places import open_features
from pipelines.sharing.publish import SCRATCH
from pipelines.store.find import StoredSet, feature_sets, nbytes_of, staged_below
from pipelines.store.move import Params
from pipelines.store.named import ProjectOption, named_in, naming
from pipelines.store.table import size, table
from store import FeatureStore, StoreError
from store import verify as check
from store.format.layout import kind_of
from store.format.unfinished import is_stub, progress_at
from store.places import LocalFolder, is_remote, place_at

FeatureSet = Annotated[str, typer.Argument(help="folder of a feature set, or its address (s3://…)")]


def ls(
    root: Annotated[str, typer.Argument(help="folder to look through, or an address (s3://…)")] = "features",
    project: ProjectOption = None,
) -> None:
    """List the feature sets below a folder, or in one of an object store, including damaged and unfinished ones and stubs.

    With the day on which each was read last, as far as the file system records that, or written; and the lock file of DVC that
    names it: dvc.lock of this folder, or of --project.
    """
    remote, named = is_remote(root), named_in([Path(), *(project or ())], only_locks=True)
    if not remote and not Path(root).is_dir():
        raise StoreError(f"there is no folder {root}; name one that holds feature sets")
    rows = [["feature set", "encoder", "images", "kinds", "dtype", "bytes", "key", "used", "named by"]]
    problems = []
    for one in StoredSet.at_root(root.rstrip("/")) if remote else map(StoredSet.in_folder, feature_sets(Path(root))):
        stub = not remote and is_stub(Path(one.address))
        try:
            store = FeatureStore.describe(one.address) if stub else FeatureStore.open(one.address)
        except StoreError as error:
            state = "unfinished" if remote and progress_at(place_at(one.address)) else "damaged"
            problems.append(f"{state}: {error}")
            rows.append([one.address, state, "", "", "", size(one.nbytes), "", "", ""])
            continue
        kinds = "stub" if stub else ",".join(kind for kind in store.kinds if kind not in ("images", "norm"))
        described = [str(store.attributes["encoder"]), f"{len(store):,}", kinds, store.spec.dtype]
        lock = naming(one.address, one.content, named)
        rows.append([one.address, *described, size(one.nbytes), store.spec.key[:8], one.day, lock])
    lines = table(rows, right=(2, 5)) if len(rows) > 1 else [f"no feature sets below {root}"]
    typer.echo("\n".join([*lines, *problems]))
    if remote:
        return
    for scratch in sorted(path for path in Path(root).rglob(f"{SCRATCH}/*") if path.is_dir() and not path.name.startswith(".")):
        remedy = "give its command again, or remove that folder"
        typer.echo(f"not uploaded yet: {scratch} ({size(nbytes_of(scratch))}); {remedy}")
    for staged in staged_below(Path(root)):
        remedy = f"give its command again, or: beyondcls store rm {shlex.quote(str(staged.folder))}"
        typer.echo(f"unfinished: {staged.folder} ({size(nbytes_of(staged.folder))}): {staged.state()}; {remedy}")


def info(path: FeatureSet, params: Params = None) -> None:
    """Print key, encoder, arrays, shapes and bytes."""
    store = open_features(path, params)
    total = sum(array.nbytes for array in store.arrays.values())
    invalid, problems = len(store.attributes["invalid"]), len(store.attributes.get("problems") or ())
    typer.echo(f"{path}: {store.attributes['encoder']}, {len(store):,} images, key {store.spec.key}")
    typer.echo(f"  {size(total)}, {size(total / len(store))} an image; encoder key {store.spec.encoder_key}")
    typer.echo(f"  {invalid:,} invalid images, {problems:,} other problems recorded")
    if missing := [name for name in store.attributes["arrays"] if name not in store.arrays]:
        typer.echo(f"  not in this copy: {', '.join(missing)}")
    for name, value in store.spec.to_dict().items():
        typer.echo(f"  {name}: {value}")
    typer.echo(f"  classes: {len(store.attributes.get('classes') or ()) or 'without names'}")
    rows = [
        [f"  {a.name}", a.layout.codec or a.layout.dtype, str(list(a.shape)), f"{a.layout.n_shards} shards", size(a.nbytes)]
        for a in store.arrays.values()
    ]
    typer.echo("\n".join(table(rows, right=(3, 4))))


def verify(path: FeatureSet) -> None:
    """Read every shard and compare it with its digests; list the damaged ones with the command that mends them, and fail."""
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
    for problem in bad:
        typer.echo(problem, err=True)
    typer.echo(f"{path}: {len(bad)} damaged shards")
    if bad:
        typer.echo("to mend them, with the images and other options that it was extracted with (--checkpoint, --params, …):")
        typer.echo(_repair_command(path, store))
        raise typer.Exit(1)


def _repair_command(path: str, store: FeatureStore) -> str:
    """The command that extracts what is damaged again, with the options that a set describes."""
    spec = store.spec
    options: dict[str, Any] = {
        "encoder": store.attributes["encoder"],
        "views": spec.n_views if spec.n_views > 1 else None,
        "drop-path": spec.drop_path or None,
        "amp": {"bfloat16": "bf16", "float16": "fp16"}.get(spec.compute_dtype),
        "blocks": ",".join(map(str, spec.blocks)),
        "statistics": ",".join(spec.statistics) or "none",
        "dtype": spec.dtype,
        "on-error": "record" if store.attributes["invalid"] or store.attributes["problems"] else None,
    }
    given = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
    maps = "--maps" if spec.maps else "--no-maps"
    return shlex.join(["beyondcls", "extract", "--repair", "--data", "IMAGES", "--out", path, *given, maps])
