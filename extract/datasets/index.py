"""What is known of the images of a source, kept between runs: their list, where nothing has changed of all that it was made of;
and digests of images whose files have the size, time of change and inode that they had. An image that differs nonetheless is
noticed when it is decoded.
"""

import json
import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL
import xxhash
from jaxtyping import Bool, Int, Int64, UInt8, UInt64

from extract.datasets.reading import GONE, State, state_of
from extract.datasets.sample import COLUMNS, Samples, Strings
from store import StoreError
from store.places.disk import replacing
from store.places.place import map_parallel
from store.shown import Bars, no_bars

FOLDER = "BEYONDCLS_INDEX"  # of indexes: an environment variable; empty for none
READERS = 8  # files that are read at once: one after the other, a disk or a network would mostly be waited for
AT_ONCE = 64  # files that one of them takes
MANY = 10_000  # images, of which it takes long enough to show a bar
# A file that was changed so shortly before it was read may be changed again within one tick of its file system's clock.
SETTLED_NS = 2_000_000_000
# Files whose size and time are looked at before a run begins: more would take seconds here, and minutes over a network.
MOST_LOOKED_AT = 100_000

T = TypeVar("T")
_lock = threading.Lock()  # of who reads images for their digests


class Index:
    """The images of a source, and digests of their bytes.

    Args:
        samples: all of them.
        path: the file that keeps it; None: nothing is kept.

    Attributes:
        digest: XXH3-128 of the bytes of each image, where `known`.
        bars: shows that many images are read.
        states: of the files when their images were read, GONE before.
        attributes: what else is known of the set, in terms of JSON.
        sources: states of all that the list of images was made of; None where that is not known.
    """

    digest: UInt8[np.ndarray, "N 16"]
    known: Bool[np.ndarray, "N"]
    states: Int64[np.ndarray, "F 3"]

    def __init__(self, samples: Samples, path: Path | None = None):
        self.samples, self.path = samples, path
        self.digest, self.known = np.zeros((len(samples), 16), np.uint8), np.zeros(len(samples), bool)
        for row, sample in samples.others.items():
            if sample.digest is not None:
                self.digest[row], self.known[row] = np.frombuffer(sample.digest, np.uint8), True
        self.states = np.full((len(samples.files), 3), GONE, np.int64)
        self.bars: Bars = no_bars
        self.attributes: dict[str, Any] = {}
        self.sources: Mapping[str, State] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "bars": no_bars}

    @classmethod
    def read(cls, path: Path) -> "Index | None":
        """The index in a file; None where there is none, or it is damaged, which checksums of the archive tell."""
        damage = OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile
        with suppress(*damage), np.load(path, allow_pickle=False) as held:
            about = json.loads(held["about"].tobytes())
            ids, files, sources = (Strings(held[f"{name}_text"], held[f"{name}_ends"]) for name in ("ids", "files", "sources"))
            columns = {name: held[f"samples_{name}"] for name in COLUMNS}
            index = cls(Samples(ids, files, columns, {int(row): text for row, text in about["problems"].items()}), path)
            index.digest, index.known, index.states = held["digest"], held["known"], held["states"]
            index.attributes = about["attributes"]
            if about["reader"] == _reader_version():
                index.sources = dict(zip(sources, map(tuple, held["source_states"].tolist()), strict=True))
            return index
        return None

    def write(self) -> None:
        """Keep it, without digests of files that may have changed since they were read."""
        if self.path is None:
            return
        samples, sources = self.samples, self.sources or {}
        about = {
            "problems": samples.problems,
            "attributes": self.attributes,
            "reader": None if self.sources is None or samples.others else _reader_version(),
        }
        columns = {
            "digest": self.digest,
            "known": self.known & samples.are_in_files & (self.states[samples.file, 0] >= 0),
            "states": self.states,
            "source_states": np.array([*sources.values()], np.int64).reshape(-1, 3),
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
            **{f"samples_{name}": values for name, values in samples.columns.items()},
        }
        for name, strings in (("ids", samples.ids), ("files", samples.files), ("sources", Strings.of(sources))):
            columns |= {f"{name}_text": strings.text, f"{name}_ends": strings.ends}
        # A full disk, or somebody else's folder: images are listed and read again next time.
        with suppress(OSError, StoreError), replacing(self.path) as partial, partial.open("wb") as file:
            np.savez(file, **columns)

    def is_current(self) -> bool:
        """Whether nothing has changed of what the list of images was made of; nor one of the files, unless they are many."""
        if self.sources is None or any(state_of(path) != state for path, state in self.sources.items()):
            return False
        if len(self.states) > MOST_LOOKED_AT:
            return True
        files = np.unique(self.samples.file[self.samples.are_in_files])
        return bool((self.states[files] >= 0).all()) and not self._is_changed(files)

    def is_outdated(self) -> bool:
        """Whether one of many files has changed since it was read, at which `is_current` does not look."""
        return len(self.states) > MOST_LOOKED_AT and self._is_changed(np.flatnonzero(self.states[:, 0] >= 0))

    def _file_states(self, files: Int[np.ndarray, "M"]) -> Int64[np.ndarray, "M 3"]:
        parts = _in_parallel(lambda some: [state_of(self.samples.files[file]) for file in some], files.tolist())
        return np.array([*chain.from_iterable(parts)], np.int64).reshape(-1, 3)

    def _is_changed(self, files: Int[np.ndarray, "M"]) -> bool:
        return not np.array_equal(self._file_states(files), self.states[files])

    def take_over(self, other: "Index") -> None:
        """Digests that another index has of the same bytes of files that have not changed since."""
        _, theirs, ours = np.intersect1d(_place_digests(other.samples), _place_digests(self.samples), return_indices=True)
        is_wanted = other.known[theirs] & self.samples.are_in_files[ours] & ~self.known[ours]
        theirs, ours = theirs[is_wanted], ours[is_wanted]
        files, now = self.samples.file[ours], np.full_like(self.states, GONE)
        now[np.unique(files)] = self._file_states(np.unique(files))
        then = other.states[other.samples.file[theirs]]
        is_same = (now[files] == then).all(1) & (then[:, 0] >= 0)
        self.digest[ours[is_same]], self.known[ours[is_same]] = other.digest[theirs[is_same]], True
        self.states[files[is_same]] = now[files[is_same]]

    def digests(self, rows: Sequence[int] | None = None) -> UInt8[np.ndarray, "M 16"]:
        """Digests of some images, or all; those that are not known are read.

        Raises:
            BeyondClsError: an image cannot be read.
        """
        chosen = np.arange(len(self.samples)) if rows is None else np.asarray(rows, np.int64)
        with _lock:
            unread = np.unique(chosen[~self.known[chosen]])
            if unread.size:
                self._read(unread)
        return self.digest if rows is None else self.digest[chosen]

    def forget(self, row: int | None = None) -> None:
        """The list may not be what it was, and an image is not."""
        with _lock:
            self.sources = None
            if row is not None:
                self.known[row] = False
            self.write()

    def _read(self, rows: Int64[np.ndarray, "M"]) -> None:
        files = np.unique(self.samples.file[rows[self.samples.are_in_files[rows]]]) if self.path is not None else rows[:0]
        before = self._file_states(files)

        def read(some: Sequence[int]) -> bytes:
            return b"".join(map(xxhash.xxh3_128_digest, self.samples.encoded(some)))

        digests = bytearray()
        with (self.bars if len(rows) >= MANY else no_bars)("digests", len(rows), "images") as progress:
            for part in _in_parallel(read, rows.tolist()):
                digests += part
                progress(len(part) // 16)
        self.digest[rows] = np.frombuffer(digests, np.uint8).reshape(-1, 16)
        self.known[rows] = True
        self.attributes.pop("digests", None)
        if len(files):
            now, latest = self._file_states(files), time.time_ns() - SETTLED_NS
            settled = (before == now).all(1) & (before[:, 0] >= 0) & (before[:, 1] < latest)
            self.states[files] = np.where(settled[:, None], before, GONE)
            self.write()


def index_of(source: str, form: str | None, split: str | None, classes: Path | None) -> Path | None:
    """The file of the index of the images that are opened so; None where none is to be kept."""
    named = os.environ.get(FOLDER)
    if named == "":
        return None
    cached = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beyondcls/index"
    is_absolute = os.path.isabs(source) and (classes is None or classes.is_absolute())
    described = "\0".join(["" if is_absolute else os.getcwd(), source, *map(str, (form, split, classes))])
    return cached / f"{xxhash.xxh3_128_hexdigest(os.fsencode(described))}.npz"


def _in_parallel(work: Callable[[Sequence[Any]], T], items: Sequence[Any]) -> Iterator[T]:
    """Results of `work` on some items at a time, in order."""
    return map_parallel(work, [items[i : i + AT_ONCE] for i in range(0, len(items), AT_ONCE)], READERS)


def settled_states(sources: Mapping[str, State]) -> Mapping[str, State] | None:
    """States of what a list was made of, if they are what they were, and have been for long enough."""
    last = max((state[1] for state in sources.values()), default=0)
    is_settled = last < time.time_ns() - SETTLED_NS and all(state_of(path) == state for path, state in sources.items())
    return sources if is_settled else None


def _place_digests(samples: Samples) -> UInt64[np.ndarray, "N"]:
    """A digest of file, offset and size of each image."""
    files = [xxhash.xxh3_64_intdigest(file.encode("utf-8", "surrogateescape")) for file in samples.files]
    places = np.array(files, np.uint64)[samples.file] if files else np.zeros(0, np.uint64)
    for column, factor in ((samples.offset, 0x9E3779B97F4A7C15), (samples.size, 0xC2B2AE3D27D4EB4F)):
        places = (places ^ column.astype(np.uint64)) * np.uint64(factor)
    return places


@cache
def _reader_version() -> str:
    """What decides what a list of images holds, besides files: the code of this package, and the formats that Pillow reads."""
    code = xxhash.xxh3_128()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        code.update(file.read_bytes())
    return f"{code.hexdigest()} {PIL.__version__}"
