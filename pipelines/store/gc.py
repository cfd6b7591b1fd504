"""`beyondcls store gc`: removing feature sets that nothing refers to any more."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipelines.store.leftovers import Leftover
    from pipelines.store.lock_files import Reference
    from pipelines.store.references import Project


def gc(
    folder: Annotated[Path, typer.Argument(help="folder of feature sets")] = Path("features"),
    params: Annotated[Path | None, typer.Option(help="parameter file with store.root  [default: your configuration's]")] = None,
    root: Annotated[
        str | None, typer.Option(help="root to look at instead: a folder, s3://…, or project for none", show_default=False)
    ] = None,
    project: Annotated[
        list[Path] | None, typer.Option(help="folder of another project whose sets are at the root; may be repeated")
    ] = None,
    only_this_project: Annotated[
        bool, typer.Option("--only-this-project", help="say that no other project, nor clone of this one, has sets at the root")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="remove them; without, nothing is changed")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="list those that are kept, too, and why")] = False,
) -> None:
    """List feature sets in a folder and at store.root that nothing refers to, and what is unfinished; --delete removes them.

    A set is kept if a receipt, a stub, or a lock file of DVC names it: in this folder as it is now, or in the last commit of a
    branch, a remote branch, a tag, or an experiment that this clone knows of (`git fetch --all` first). Older commits do not
    count. Lock files name digests; their content is looked up in DVC's cache, and if it is missing, every set of that name is
    kept.

    References of other projects at the same root cannot be seen from here: name each with --project, including clones of this
    one with unpushed work, or give --only-this-project if there are none; otherwise --delete refuses. Sets that are being
    written, and folders that hold other files, are left alone.
    """
    from pipelines.sharing.places import PROJECT, Places
    from pipelines.store.leftovers import leftovers
    from pipelines.store.references import find_references
    from store import StoreError

    places = Places.from_params(params) if root is None else Places.from_root(root)
    local = [(str(folder), False)] if not _same_place(str(folder), places.root) else []
    shared = [(places.root, True)] if places.root is not None else []
    if not folder.is_dir() and not shared:
        raise StoreError(
            f"there is no folder {folder}, and no store.root; name one that holds feature sets, or give --params or --root"
        )
    # Sets are listed before references, so that a set that is finished in between is not considered.
    by_path = {
        _real(leftover.address): leftover for place, at_root in [*local, *shared] for leftover in leftovers(place, at_root)
    }
    others = [find_references(path, []) for path in project or ()]
    for other in others:
        if not other.references:
            raise StoreError(
                f"nothing in {other.folder} refers to a feature set; name the folder of a project, with its receipts"
            )
    ours = dict.fromkeys([Path.cwd(), *(Path(os.path.abspath(folder)).parent for _ in local if folder.is_dir())])
    projects = [*(find_references(p, [Path(place) for place, _ in shared if "://" not in place]) for p in ours), *others]
    for note in dict.fromkeys(note for p in projects for note in p.notes):
        typer.echo(f"note: {note}", err=True)
    kept, unused = _decide(list(by_path.values()), projects)
    _show(kept, unused, show_all)
    if not unused:
        return
    if not delete:
        typer.echo("nothing was removed; --delete does it")
        return
    if not any(p.references for p in projects):
        raise StoreError(
            "nothing here refers to any feature set (no receipt, no stub, no lock file), so all of them would be removed, "
            "which is hardly intended; name the project that they belong to with --project, or remove one with "
            "`beyondcls store rm`"
        )
    outside = (leftover.address for leftover in unused if not _is_below(leftover.address, Path.cwd()))
    if not (project or only_this_project) and (address := next(outside, None)) is not None:
        raise StoreError(
            f"{address} is outside of this project ({Path.cwd()}), where others may have theirs; name their folders with "
            f"--project, or say --only-this-project if there are none. With --root {PROJECT} only {folder} is looked at"
        )
    _remove(unused)


def _decide(
    leftovers_found: Sequence["Leftover"], projects: Sequence["Project"]
) -> tuple[list[tuple["Leftover", str]], list["Leftover"]]:
    """Leftovers to keep with the reason, and leftovers that nothing refers to."""
    from pipelines.sharing.places import FEATURES, RECEIPTS

    references = [reference for project in projects for reference in project.references]
    outs = {_real(str(path)): source for project in projects for path, source in project.outs.items()}
    keys, names = _keys_and_names(references, leftovers_found)
    whole = {key: leftover.address for leftover in leftovers_found if not leftover.state for key in leftover.keys}
    kept: list[tuple[Leftover, str]] = []
    unused: list[Leftover] = []
    for leftover in leftovers_found:
        if leftover.why_left:
            kept.append((leftover, leftover.why_left))
            continue
        key = next((key for key in sorted(leftover.keys) if key in keys), None)
        doubt = next((names[name] for name in (leftover.name, FEATURES, RECEIPTS) if name in names), None)
        if leftover.is_rest or (leftover.unfinished and leftover.keys & whole.keys()):
            unused.append(leftover)
        elif (out := outs.get(_real(leftover.address))) is not None:
            kept.append((leftover, f"an out of {out}"))
        elif key is not None:
            kept.append((leftover, keys[key].source))
        elif doubt is not None:
            kept.append((leftover, f"{doubt.source}: {doubt.why}"))
        else:
            unused.append(leftover)
    return kept, unused


def _keys_and_names(
    references: Iterable["Reference"], leftovers_found: Sequence["Leftover"]
) -> tuple[dict[str, "Reference"], dict[str, "Reference"]]:
    """References by key, and by name if the key is unknown: neither in DVC's cache, nor that of a set with the digest."""
    by_md5 = {leftover.md5: leftover.keys for leftover in leftovers_found if leftover.md5 is not None}
    keys: dict[str, Reference] = {}
    names: dict[str, Reference] = {}
    for reference in references:
        of_md5 = by_md5.get(reference.md5 or "", frozenset())
        for key in [reference.key] if reference.key is not None else sorted(of_md5):
            keys.setdefault(key, reference)
        if reference.key is None and not of_md5:
            names.setdefault(reference.name, reference)
    return keys, names


def _show(kept: Sequence[tuple["Leftover", str]], unused: Sequence["Leftover"], show_all: bool) -> None:
    from pipelines.store.table import size, table

    rows = [[leftover.address, size(leftover.nbytes), leftover.state or "nothing refers to it"] for leftover in unused]
    if rows:
        for line in table([["unused", "bytes", ""], *rows], right=[1]):
            typer.echo(line)
    if show_all and kept:
        rows = [
            [leftover.address, size(leftover.nbytes), f"{leftover.state}; {why}" if leftover.state else why]
            for leftover, why in kept
        ]
        for line in table([["kept", "bytes", "why"], *rows], right=[1]):
            typer.echo(line)
    elif doubts := {why for _, why in kept if "is not known" in why}:
        for why in sorted(doubts):
            typer.echo(f"kept in doubt: {why}")
    typer.echo(
        f"unused: {len(unused)} ({size(sum(leftover.nbytes for leftover in unused))}); "
        f"kept: {len(kept)} ({size(sum(leftover.nbytes for leftover, _ in kept))})"
        + ("" if show_all or not kept else "; --all lists them")
    )


def _remove(unused: Sequence["Leftover"]) -> None:
    """Remove leftovers that nothing refers to.

    Raises:
        typer.Exit: not all could be removed.
    """
    from pipelines.store.table import size
    from store import StoreError

    removed = 0
    for leftover in unused:
        try:
            leftover.remove()
        except (StoreError, OSError) as error:
            typer.echo(f"left: {leftover.address}: {error}", err=True)
        else:
            removed += leftover.nbytes
            typer.echo(f"removed {leftover.address}")
    typer.echo(f"freed {size(removed)}")
    if removed < sum(leftover.nbytes for leftover in unused):
        raise typer.Exit(1)


def _real(address: str) -> str:
    return address if "://" in address else os.path.realpath(address)


def _same_place(place: str, other_place: str | None) -> bool:
    return other_place is not None and _real(place) == _real(other_place)


def _is_below(place: str, folder: Path) -> bool:
    return "://" not in place and Path(_real(place)).is_relative_to(os.path.realpath(folder))
