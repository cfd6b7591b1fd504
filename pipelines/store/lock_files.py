"""Feature sets in DVC's lock files (dvc.lock, NAME.dvc), and their keys in its cache; read without DVC."""

import configparser
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines.sharing.places import FEATURES, RECEIPTS
from store.errors import StoreError
from store.format.layout import KINDS
from store.format.spec import key_in
from store.moving.receipt import is_receipt_name

FETCH = "`dvc fetch --all-branches --all-tags` brings it, if it was pushed"


@dataclass(frozen=True)
class Reference:
    """A reference to a feature set.

    Attributes:
        name: of the set, in the reference; at a root it may have another name.
        source: what refers to it, in words.
        key: of the set; None if it is unknown here.
        md5: of the set's zarr.json, if a lock file gives it.
        why: why the key is unknown.
    """

    name: str
    source: str
    key: str | None
    md5: str | None = None
    why: str = ""


def is_lock_file(name: str) -> bool:
    """Whether a file of this name lists outputs for DVC."""
    return name == "dvc.lock" or (name.endswith(".dvc") and name != ".dvc")


def outs_of(content: bytes, source: str) -> dict[str, str | None]:
    """MD5 of each output in a lock file by its path; that of a folder's list ends in `.dir`, None is any other entry.

    Args:
        source: names the file in messages.

    Raises:
        StoreError: it is not a lock file.
    """
    try:
        # All scalars are read as text: a digest of only digits is not a number.
        read = yaml.load(content, getattr(yaml, "CBaseLoader", yaml.BaseLoader)) or {}
        stages = read.get("stages") or {} if "outs" not in read else {"": read}
        return {out["path"]: out.get("md5") for stage in stages.values() for out in stage.get("outs") or []}
    except (yaml.YAMLError, UnicodeError, AttributeError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{source} is not a readable lock file of DVC ({type(error).__name__}: {reason}); it may refer to any feature "
            "set, so nothing is removed: mend it, or delete that branch"
        ) from error


def references_of(outs: dict[str, str | None], cache: "Cache", source: str) -> Iterator[Reference]:
    """References to feature sets among the outputs of a lock file: NAME/zarr.json, receipts/NAME.json, or their folders."""
    receipts: dict[str, str | None] = {}
    described: dict[str, str | None] = {}
    for path, md5 in _files(outs, cache):
        folder, _, name = path.rpartition("/")
        parent = folder.rpartition("/")[2]
        if name == "zarr.json":
            described[parent] = md5
        elif parent == RECEIPTS and is_receipt_name(name):
            receipts[name.removesuffix(".json")] = md5
        elif md5 is None or md5.endswith(".dir"):  # a folder with unknown content
            described.setdefault(parent if name in KINDS and parent != FEATURES else name, None)
    for name in sorted({*receipts, *described}):
        contents = [content for md5 in (receipts.get(name), described.get(name)) if (content := cache.content(md5)) is not None]
        key = next((key for content in contents if (key := key_in(content)) is not None), None)
        if key is not None or not contents or name in receipts:  # else: the group of other arrays
            md5 = receipts.get(name) or described.get(name) or name
            why = "" if key else f"its key is not known, for {md5} is not in DVC's cache here; {FETCH}"
            yield Reference(name, source, key, described.get(name), why)


def _files(outs: dict[str, str | None], cache: "Cache") -> Iterator[tuple[str, str | None]]:
    """Outputs that are files; for folders the relevant files in their list, or the folder itself if its list is missing."""
    for out, md5 in outs.items():
        path = out.rstrip("/")
        if f"{path.rpartition('/')[0]}/zarr.json" in outs and md5 is not None and md5.endswith(".dir"):
            continue  # a kind of arrays of a set that is an output itself
        listed = cache.listing(md5)
        if listed is None:
            yield path, md5
        else:
            yield from ((f"{path}/{name}", m) for name, m in listed.items() if name.count("/") <= 1 and name.endswith(".json"))


class Cache:
    """DVC's cache of a project: contents by their MD5.

    Args:
        folder: of the project, or below it; outside of a project the cache is empty.
    """

    def __init__(self, folder: Path):
        root = next((f for f in (folder, *folder.parents) if (f / ".dvc").is_dir()), None)
        self.folder = _cache_folder(root / ".dvc") if root is not None else None

    def content(self, md5: str | None) -> bytes | None:
        """The content with this MD5; None if it is missing or damaged."""
        if self.folder is None or md5 is None or not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5):
            return None
        for place in (self.folder / "files/md5", self.folder):  # of DVC 3, and before
            try:
                content = (place / md5[:2] / md5[2:]).read_bytes()
            except OSError:
                continue
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5[:32]:
                return content
        return None

    def listing(self, md5: str | None) -> dict[str, str] | None:
        """MD5 of each file below a folder by its path there; None if the list is missing, or it is not a folder."""
        if md5 is None or not md5.endswith(".dir") or (content := self.content(md5)) is None:
            return None
        try:
            return {entry["relpath"]: entry["md5"] for entry in json.loads(content)}
        except (ValueError, KeyError, TypeError):
            return None


def _cache_folder(project: Path) -> Path:
    """`cache.dir` of DVC's settings: the system's, the user's, the project's, and those that are not in git."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    cache_folder: Path = project / "cache"
    for file in (Path("/etc/xdg/dvc/config"), Path(home, "dvc/config"), project / "config", project / "config.local"):
        settings = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            settings.read(file, encoding="utf-8")
            value: Any = settings.get("cache", "dir", fallback=None)
        except (configparser.Error, UnicodeError):
            continue  # sets whose keys are not in the cache are kept
        if value:
            cache_folder = file.parent / os.path.expanduser(value.strip("'\""))
    return cache_folder
