"""References of a project to feature sets: in its present files, and in git's branches, tags and experiments."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.sharing.places import FEATURES, RECEIPTS
from pipelines.store.find import is_feature_set
from pipelines.store.lock_files import Cache, Reference, is_lock_file, outs_of, references_of
from store.errors import StoreError
from store.format.layout import kind_of
from store.format.spec import key_in
from store.moving.receipt import Receipt, is_receipt_name

# Names of refs for messages, in the order in which they are searched.
REFS = {"refs/heads/": "branch ", "refs/remotes/": "remote branch ", "refs/tags/": "tag ", "refs/exps/": "experiment ", "": ""}
EXPERIMENTS = ".dvc/tmp/exps"  # where DVC runs experiments that have no ref yet
OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # would redirect git to another repository


@dataclass
class Project:
    """The references of a project.

    Attributes:
        references: from its files, and from git's.
        outs: folders of feature sets that are outputs in its present lock files.
        notes: places that could not be searched because they are missing.
    """

    folder: Path
    references: list[Reference] = field(default_factory=list)
    outs: dict[Path, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_references(folder: Path, without: list[Path]) -> Project:
    """Everything in a project that refers to feature sets.

    Args:
        without: folders below it that are roots, whose sets are not references.

    Raises:
        StoreError: a file that may refer to any set cannot be read, or git fails.
    """
    folder = Path(os.path.abspath(folder))
    if not folder.is_dir():
        raise StoreError(f"there is no folder {folder}; name that of a project")
    project, cache = Project(folder), Cache(folder)
    linked = (folder / name for name in (FEATURES, RECEIPTS) if (folder / name).is_symlink())  # to another disk, say
    for start in (folder, *linked, folder / EXPERIMENTS):
        _add_files(project, start, cache, {Path(os.path.realpath(root)) for root in without})
    repository = next((f for f in (folder, *folder.parents) if (f / ".git").exists()), None)
    if repository is None:
        project.notes.append(f"{folder} is not in a git repository: only its present files count")
    else:
        project.references += _of_git(repository, cache)
    if not any("dvc.lock" in reference.source for reference in project.references):
        project.notes.append(f"{folder} has no dvc.lock that names feature sets: only receipts and stubs count")
    return project


def _add_files(project: Project, start: Path, cache: Cache, roots: set[Path]) -> None:
    """Add receipts, stubs, copies that lack arrays, and lock files at and below a folder; hidden folders are skipped."""
    for where, subfolders, names in os.walk(start, onerror=_unreadable):
        folder = Path(where)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and folder / name not in roots)
        if "zarr.json" in names and is_feature_set(folder):
            subfolders.clear()
            if (reference := _of_part(folder)) is not None:
                project.references.append(reference)
            continue
        for name in sorted(names):
            file = folder / name
            if is_lock_file(name):
                outs = outs_of(file.read_bytes(), shown(file))
                project.references += references_of(outs, cache, shown(file))
                project.outs |= {path: shown(file) for out in outs for path in _folders_of(folder / out)}
            elif folder.name == RECEIPTS and is_receipt_name(name):
                project.references.append(Reference(file.stem, shown(file), Receipt.read(file).key))


def _unreadable(error: OSError) -> None:
    if isinstance(error, FileNotFoundError):  # nothing to look at, or gone in the meantime
        return
    raise StoreError(
        f"{error.filename} cannot be searched ({error.strerror}); it may refer to any feature set: get access to it"
    )


def _folders_of(out: Path) -> tuple[Path, Path]:
    """Folders that are a feature set if this output belongs to one: the output is the set, or is directly in it."""
    out = Path(os.path.normpath(out))
    return out, out.parent


def _of_part(folder: Path) -> Reference | None:
    """The reference of a stub, or of a copy that lacks arrays: they are read at the root. None if no array is missing.

    Raises:
        StoreError: a stub whose key is unreadable.
    """
    from store import FeatureStore
    from store.format.unfinished import is_stub

    try:
        store = FeatureStore.describe(folder)
    except StoreError:
        if is_stub(folder):
            raise
        return None  # damaged, but no stub
    kinds = {kind_of(name) for name in store.attributes["arrays"]}
    if all((folder / kind / "zarr.json").is_file() for kind in kinds):
        return None
    return Reference(folder.name, shown(folder / "zarr.json"), store.spec.key)


def _of_git(repository: Path, cache: Cache) -> Iterator[Reference]:
    """References in lock files, receipts and stubs of every ref; a file that is the same in several counts once."""
    blobs: set[tuple[str, str]] = set()
    for ref, commit in _commits(repository):
        for entry in _git(repository, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
            described, _, path = entry.decode(errors="surrogateescape").partition("\t")
            folder, _, name = path.rpartition("/")
            parent = folder.rpartition("/")[2]
            receipt = parent == RECEIPTS and is_receipt_name(name)
            if not (is_lock_file(name) or receipt or name == "zarr.json") or not described.startswith("100"):
                continue
            blob = described.split()[2]
            if (blob, path) in blobs:
                continue
            blobs.add((blob, path))
            content, source = _git(repository, "cat-file", "blob", blob), f"{path} of {ref}"
            if is_lock_file(name):
                yield from references_of(outs_of(content, source), cache, source)
            elif (key := key_in(content)) is not None:
                yield Reference(parent if name == "zarr.json" else name.removesuffix(".json"), source, key)
            elif receipt:
                raise StoreError(
                    f"{source} is not a receipt of a feature set, and may refer to any: mend it, or delete that branch"
                )


def _commits(repository: Path) -> list[tuple[str, str]]:
    """Commits of refs and of checked-out work trees, each once, with a name for messages."""
    lines = _git(repository, "for-each-ref", "--format=%(objecttype) %(*objecttype) %(objectname) %(refname)")
    split = (line.split(" ", 3) for line in lines.decode(errors="surrogateescape").splitlines())
    refs = [(ref, commit) for kind, tagged, commit, ref in split if "blob" not in (kind, tagged)]
    heads = (
        line.split(" ")[1]
        for line in _git(repository, "worktree", "list", "--porcelain").decode().splitlines()
        if line[:5] == "HEAD "
    )
    refs += [("HEAD", commit) for commit in heads if commit.strip("0")]
    names: dict[str, str] = {}
    for prefix, kind in REFS.items():
        for ref, commit in refs:
            if ref.startswith(prefix):
                name = ref.rpartition("/")[2] if kind == "experiment " else ref.removeprefix(prefix)
                names.setdefault(commit, kind + name)
    return [(name, commit) for commit, name in names.items()]


def _git(repository: Path, *arguments: str) -> bytes:
    """The output of a git command.

    Raises:
        StoreError: git is missing or fails.
    """
    if shutil.which("git") is None:
        raise StoreError(
            f"{repository} is a git repository, whose branches may refer to any feature set, but there is no git; install it"
        )
    environment = {name: value for name, value in os.environ.items() if name not in OF_HOOKS}
    completed = subprocess.run(["git", *arguments], cwd=repository, env=environment, capture_output=True)
    if completed.returncode:
        reason = " ".join(completed.stderr.decode(errors="replace").split())
        raise StoreError(
            f"`git {arguments[0]}` fails in {repository}, whose branches may refer to any feature set: {reason}; follow its "
            "advice"
        )
    return completed.stdout


def shown(path: Path) -> str:
    """A path relative to the current folder, if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
