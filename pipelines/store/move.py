"""`beyondcls store pull | push`: feature sets from and to the root that machines share; `export | import`: in other formats."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.progress import progress_bar
from pipelines.sharing.places import FEATURES, Places, receipt_of, set_and_receipt
from pipelines.sharing.publish import send
from pipelines.store.find import AT_ROOT
from pipelines.store.table import size
from store import FeatureStore, StoreError
from store.format.layout import kind_of
from store.moving.receipt import Receipt
from store.moving.transfer import checked_kinds
from store.moving.transfer import pull as fetch
from store.places import is_remote

Params = Annotated[Path | None, typer.Option(help="parameter file with store.root  [default: your configuration's]")]
FORMS = "hdf5, npy, or webdataset"


def pull(
    feature_set: Annotated[str, typer.Argument(metavar="SET", help="NAME, features/NAME, receipts/NAME.json, or an address")],
    params: Params = None,
    to: Annotated[Path | None, typer.Option(help="folder for it  [default: features/NAME]")] = None,
    kinds: Annotated[str | None, typer.Option(help="only these, e.g. images,cls  [default: all]")] = None,
) -> None:
    """Fetch a feature set from store.root, or some kinds of its arrays, to a local folder, every row checked.

    Arrays that are already there are not fetched again. In a project of DVC give --to another folder, or let store.cache keep
    what was read: DVC sees arrays in the place of stubs as a change.
    """
    places = Places.from_params(params)
    at_root = AT_ROOT.fullmatch(name := feature_set.rstrip("/").rpartition("/")[2])  # ROOT/NAME-KEY, the root being a folder
    if is_remote(feature_set) or (at_root and Path(feature_set, "zarr.json").is_file()):
        address, receipt = feature_set.rstrip("/"), None
        folder = Path(FEATURES) / (at_root[1] if at_root else name)
    else:
        bare = "/" not in feature_set and not feature_set.endswith(".json") and not Path(feature_set).exists()
        folder, file = set_and_receipt(f"{FEATURES}/{feature_set}" if bare else feature_set)
        if places.root is None:
            raise StoreError(f"there is no store.root to fetch {feature_set} from; give --params FILE with it, or an address")
        receipt = Receipt.read(file) if file.is_file() or not (folder / "zarr.json").is_file() else None
        key = receipt.key if receipt is not None else FeatureStore.describe(folder).spec.key
        address = places.find(folder.name, key, receipt.check if receipt is not None else lambda _: None).where
    folder = to or folder
    source = FeatureStore.open(address)
    chosen = None if kinds is None else [kind.strip() for kind in kinds.split(",")]
    kinds_to_fetch = checked_kinds(source, chosen)
    arrays = (array for name, array in source.arrays.items() if kind_of(name) in kinds_to_fetch)
    nbytes = sum(shard["nbytes"] for array in arrays for shard in array.shards)
    with progress_bar("pull", nbytes, "bytes") as progress:
        store = fetch(address, folder, chosen, progress)
    typer.echo(f"{folder}: {', '.join(store.kinds)} of {len(store):,} images; {size(nbytes)} from {address}")


def push(
    path: Annotated[Path, typer.Argument(metavar="SET", help="folder of a feature set, all of whose arrays are in it")],
    params: Params = None,
    receipt: Annotated[Path | None, typer.Option(help="file for its receipt  [default: receipts/NAME.json]")] = None,
) -> None:
    """Copy a feature set to store.root, every row checked, and write its receipt. The folder stays as it is.

    An extraction of the same set then finds it there, and leaves a stub. A set that is already there, even under another name,
    is not sent again.
    """
    places = Places.from_params(params)
    if places.root is None:
        raise StoreError(f"there is no store.root to copy {path} to; give --params FILE with it")
    store = FeatureStore.open(path)
    address, file, content = places.address(path.name, store.spec.key), receipt or receipt_of(path), Receipt.from_store(store)
    try:
        address = places.find(path.name, store.spec.key, lambda stored: content.check(stored, whole=True)).where
    except StoreError:
        send(store, address)
    content.write(file)
    typer.echo(f"{address}: {len(store):,} images, {', '.join(store.kinds)}; receipt in {file}")


def export(
    path: Annotated[str, typer.Argument(help="folder of a feature set, or its address (s3://…)")],
    out: Annotated[Path, typer.Argument(help="file (hdf5) or folder to make")],
    to: Annotated[str, typer.Option(help=FORMS)],
    arrays: Annotated[
        str | None, typer.Option(help="names, or their beginnings (patch, cls/block5), with commas  [default: all]")
    ] = None,
) -> None:
    """Write a feature set's stored values and its description as one HDF5 file, .npy files, or WebDataset tars.

    Values of int8, int4, bfloat16 and float8 are written as they are stored; scales are separate arrays.
    """
    from store.exchange import get_exchange
    from store.exchange.exchange import chosen_arrays

    form = get_exchange(to)
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
