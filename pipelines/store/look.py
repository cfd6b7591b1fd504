"""`beyondcls store ls | info | du`: the feature sets in a folder, the content of one, and the sizes of its arrays."""

import shlex
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from pipelines.sharing.places import open_features
from pipelines.sharing.publish import SCRATCH
from pipelines.store.find import feature_sets, files_of_sets, nbytes_of, staged_below
from pipelines.store.references import ProjectOption, locked, naming
from pipelines.store.table import size, table
from store import ArrayReader, FeatureStore, StoreError
from store.format.layout import SCALE, groups_of
from store.format.unfinished import is_stub, progress_at
from store.places import is_remote, place_at

FeatureSet = Annotated[str, typer.Argument(help="folder of a feature set, or its address (s3://…)")]
Params = Annotated[
    Path | None,
    typer.Option(help="parameter file with store.root, where the arrays of a stub are  [default: your configuration's]"),
]


def ls(
    root: Annotated[str, typer.Argument(help="folder to look through, or an address (s3://…)")] = "features",
    project: ProjectOption = None,
) -> None:
    """List the feature sets below a folder, or in one of an object store, including damaged and unfinished ones and stubs.

    With the day on which each was read last, as far as the file system records that, and the lock file of DVC that names it:
    dvc.lock of this folder, or of --project.
    """
    remote, references = is_remote(root), locked(project)
    if not remote and not Path(root).is_dir():
        raise StoreError(f"there is no folder {root}; name one that holds feature sets")
    rows = [["feature set", "encoder", "images", "kinds", "dtype", "bytes", "key", "used", "named by"]]
    problems = []
    if remote:
        sets = {f"{root.rstrip('/')}/{name}": sum(files.values()) for name, files in files_of_sets(root).items()}
    else:
        sets = {str(path): nbytes_of(path) for path in feature_sets(Path(root))}
    for path, nbytes in sets.items():
        stub = not remote and is_stub(Path(path))
        try:
            store = FeatureStore.describe(path) if stub else FeatureStore.open(path)
        except StoreError as error:
            state = "unfinished" if remote and progress_at(place_at(path)) else "damaged"
            problems.append(f"{state}: {error}")
            rows.append([path, state, "", "", "", size(nbytes), "", "", ""])
            continue
        kinds = "stub" if stub else ",".join(kind for kind in store.kinds if kind not in ("images", "norm"))
        described = [str(store.attributes["encoder"]), f"{len(store):,}", kinds, store.spec.dtype]
        lock = naming(path, [store.spec.key], store.place.content("zarr.json"), references)
        rows.append([path, *described, size(nbytes), store.spec.key[:8], "" if remote else _last_used(Path(path)), lock])
    if len(rows) > 1:
        for line in table(rows, right=(2, 5)):
            typer.echo(line)
    else:
        typer.echo(f"no feature sets below {root}")
    for problem in problems:
        typer.echo(problem)
    if remote:
        return
    for scratch in sorted(path for path in Path(root).rglob(f"{SCRATCH}/*") if path.is_dir() and not path.name.startswith(".")):
        remedy = "give its command again, or remove that folder"
        typer.echo(f"not uploaded yet: {scratch} ({size(nbytes_of(scratch))}); {remedy}")
    for staged in staged_below(Path(root)):
        remedy = f"give its command again, or: beyondcls store rm --staging {shlex.quote(str(staged.folder))}"
        typer.echo(f"unfinished: {staged.folder} ({size(nbytes_of(staged.folder))}): {staged.state()}; {remedy}")


def _last_used(folder: Path) -> str:
    """The day on which a shard was read or written last, 2026-01-31; empty for a stub."""
    times = [file.stat() for file in folder.rglob("c/**/*") if file.is_file()]
    return datetime.fromtimestamp(max(max(t.st_atime, t.st_mtime) for t in times)).date().isoformat() if times else ""


def info(path: FeatureSet, params: Params = None) -> None:
    """Print key, encoder, arrays, shapes and bytes."""
    store = open_features(path, params)
    total = sum(_nbytes(store, array) for array in store.arrays.values()) + _groups_nbytes(store)
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
    for line in table(rows, right=(3, 4)):
        typer.echo(line)


def du(path: FeatureSet, params: Params = None) -> None:
    """Print the bytes of each array, largest first: values, scales, and the overhead of digests, indices and descriptions."""
    store = open_features(path, params)
    parts: list[tuple[str, list[int]]] = []  # bytes of values, of scales, of the rest, and their sum
    for array in store.arrays.values():
        if array.name.endswith(SCALE) and array.name.removesuffix(SCALE) in store.arrays:
            continue  # counted with the array that it scales
        with_scale = [array] if array.scale is None else [array, array.scale]
        whole = sum(_nbytes(store, part) for part in with_scale)
        values, scales = _values_nbytes(array), sum(map(_values_nbytes, with_scale[1:]))
        parts.append((array.name, [values, scales, whole - values - scales, whole]))
    parts.sort(key=lambda part: (-part[1][-1], part[0]))
    groups = _groups_nbytes(store)
    parts.append(("description of the set", [0, 0, groups, groups]))
    parts.append(("total", [sum(column) for column in zip(*(sizes for _, sizes in parts), strict=True)]))
    rows = [["array", "values", "scales", "overhead", "bytes", "an image"]]
    rows += [[name, *(f"{n:,}" for n in sizes), size(sizes[-1] / len(store))] for name, sizes in parts]
    for line in table(rows, right=range(1, 6)):
        typer.echo(line)


def _values_nbytes(array: ArrayReader) -> int:
    return array.layout.row_nbytes * array.layout.shape[0]


def _nbytes(store: FeatureStore, array: ArrayReader) -> int:
    """Bytes of an array's files."""
    shards = sum(array.layout.nbytes(shard) for shard in range(array.layout.n_shards))
    return shards + (store.place.size(f"{array.name}/zarr.json") or 0)


def _groups_nbytes(store: FeatureStore) -> int:
    """Bytes of the zarr.json files that belong to no array."""
    return sum(store.place.size(f"{name}zarr.json") or 0 for name in ("", *(f"{g}/" for g in groups_of(list(store.arrays)))))
