"""`beyondcls store export | import`: feature sets in the formats of other programs, and back."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.progress import progress_bar
from pipelines.store.table import size
from store import BeyondClsError, FeatureStore

FORMS = "hdf5, npy, or webdataset"


def export(
    path: Annotated[str, typer.Argument(help="folder of a feature set, or its address (s3://…)")],
    out: Annotated[Path, typer.Argument(help="file (hdf5) or folder to make")],
    to: Annotated[str, typer.Option(help=FORMS)],
    arrays: Annotated[
        str | None, typer.Option(help="names, or their beginnings (patch, cls/block5), with commas  [default: all]")
    ] = None,
    tar_rows: Annotated[
        int | None, typer.Option(min=1, help="webdataset: images of a tar at most  [default: those of a shard]")
    ] = None,
) -> None:
    """Write a feature set's stored values and its description as one HDF5 file, .npy files, or WebDataset tars.

    Values of int8, int4, bfloat16 and float8 are written as they are stored; scales are separate arrays.
    """
    from store.exchange import get_exchange
    from store.exchange.exchange import chosen_arrays
    from store.exchange.webdataset import WebDataset

    form = get_exchange(to)
    if tar_rows is not None:
        if not isinstance(form, WebDataset):
            raise BeyondClsError(f"--tar-rows is for --to webdataset, not {to}; leave it out")
        form = replace(form, tar_rows=tar_rows)
    store = FeatureStore.open(path)
    names = chosen_arrays(store, None if arrays is None else arrays.split(","))
    n_shards = sum(store.arrays[name].layout.n_shards for name in names)
    with progress_bar(f"export {path}", n_shards, "shards") as progress:
        form.export(store, out, names, progress)
    files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
    n_missing = len(store.attributes["arrays"]) - len(names)
    partly = f"; without {n_missing} arrays it cannot be imported again" if n_missing else ""
    typer.echo(f"{out}: {len(names)} arrays of {len(store):,} images, {size(sum(f.stat().st_size for f in files))}{partly}")


def import_(
    source: Annotated[Path, typer.Argument(help="what `beyondcls store export` wrote, of all arrays")],
    out: Annotated[Path, typer.Argument(help="folder of the feature set to make")],
    form: Annotated[str | None, typer.Option("--from", help=f"{FORMS}; seen from the source by default")] = None,
) -> None:
    """Restore an exported feature set, the same to the last byte; every value is compared with its digest.

    An interrupted import goes on when the same command is given again.
    """
    from store.exchange import form_of, get_exchange, import_from

    exchange = form_of(source) if form is None else get_exchange(form)
    with exchange.read(source) as exported:
        arrays = [array for array in exported.store.arrays.values() if array.layout.has_image_axis]
        with progress_bar(f"import {source}", sum(array.layout.n_shards for array in arrays), "shards") as progress:
            store = import_from(exported, out, progress)
    typer.echo(f"{out}: {len(store):,} images, {', '.join(store.kinds)}, key {store.spec.key}")
