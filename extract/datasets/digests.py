"""Digests of the bytes of images, remembered by file, size and time: or all images would be read before each run begins."""

import os
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import xxhash
from jaxtyping import Int64, UInt8

from extract.datasets.sample import Sample
from store import StoreError
from store.places.disk import write_file

FOLDER = "BEYONDCLS_INDEX"  # of what is remembered: an environment variable; empty for none
READERS = 8  # files that are read at once: one after the other, a disk or a network would mostly be waited for
# A file that was changed so shortly before it was read may be changed again within one tick of its file system's clock.
SETTLED_NS = 2_000_000_000
GONE = (-1, -1, -1)


@dataclass(frozen=True)
class Memory:
    """What is remembered of the images of a source.

    Attributes:
        files: paths of their files.
        states: size, time of change (ns) and inode of each file when it was read.
        number: of the file of each image, among these.
        offset, nbytes: where it is in the file.
        digest: of its bytes.
    """

    files: list[str]
    states: Int64[np.ndarray, "F 3"]
    number: Int64[np.ndarray, "M"]
    offset: Int64[np.ndarray, "M"]
    nbytes: Int64[np.ndarray, "M"]
    digest: UInt8[np.ndarray, "M 16"]

    @classmethod
    def read(cls, path: Path) -> "Memory | None":
        """What a file holds; None where there is none, or it is damaged."""
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), np.load(path, allow_pickle=False) as held:
            files = held["files"].tobytes().decode("utf-8", "surrogateescape").split("\0")
            columns = {name: held[name] for name in ("states", "number", "offset", "nbytes", "digest")}
            m, numbers = len(columns["number"]), columns["number"]
            shapes = {"states": (len(files), 3), "number": (m,), "offset": (m,), "nbytes": (m,), "digest": (m, 16)}
            if all(columns[name].shape == shape for name, shape in shapes.items()) and (numbers < len(files)).all():
                return cls(files, **columns)
        return None

    def write(self, path: Path) -> None:
        blob = np.frombuffer("\0".join(self.files).encode("utf-8", "surrogateescape"), np.uint8)
        columns = {name: getattr(self, name) for name in ("states", "number", "offset", "nbytes", "digest")}
        content = BytesIO()
        np.savez(content, files=blob, **columns)
        with suppress(OSError, StoreError):  # a full disk, or somebody else's folder: images are read again next time
            write_file(path, [content.getbuffer()])


def digests_of(samples: Sequence[Sample], source: str) -> UInt8[np.ndarray, "N 16"]:
    """XXH3-128 of the bytes of each image.

    Files whose size, time of change and inode are those that are remembered are not read. Should one have changed without a
    trace in these, that shows when its images are decoded.

    Args:
        source: what the user named, of which these are all images or some.

    Raises:
        BeyondClsError: an image cannot be read.
    """
    digests = np.zeros((len(samples), 16), np.uint8)
    path = memory_of(source)
    here = os.getcwd()
    named = [os.path.join(here, sample.file) if _is_in_file(sample) else "" for sample in samples]  # type: ignore[arg-type]
    files = sorted({*named} - {""})
    before = _states(files) if path is not None else np.zeros((0, 3), np.int64)
    known = _remembered(Memory.read(path), files, before) if path is not None else {}
    unread: list[int] = []
    for row, sample in enumerate(samples):
        digest = sample.digest or known.get((named[row], sample.offset, sample.size))
        if digest is None:
            unread.append(row)
        else:
            digests[row] = np.frombuffer(digest, np.uint8)
    if unread:
        with ThreadPoolExecutor(READERS, "beyondcls-digests") as readers:
            read = readers.map(lambda row: xxhash.xxh3_128_digest(samples[row].read()), unread)
            for row, digest in zip(unread, read, strict=True):
                digests[row] = np.frombuffer(digest, np.uint8)
        if path is not None:
            _remember(path, samples, named, digests, files, before)
    return digests


def forget(source: str) -> None:
    """Remember nothing of the images of a source, as one of them is not what was remembered."""
    if (path := memory_of(source)) is not None:
        path.unlink(missing_ok=True)


def memory_of(source: str) -> Path | None:
    """The file that remembers the images of a source; None where nothing is to be remembered."""
    named = os.environ.get(FOLDER)
    if named == "":
        return None
    cache = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beyondcls/index"
    return cache / f"{xxhash.xxh3_128_hexdigest(os.fsencode(os.path.join(os.getcwd(), source)))}.npz"


def _is_in_file(sample: Sample) -> bool:
    """Whether an image is a range of bytes of a local file, and no more than that."""
    return type(sample) is Sample and isinstance(sample.file, Path) and sample.size > 0


def _states(files: Sequence[str]) -> Int64[np.ndarray, "F 3"]:
    """Size, time of change in ns and inode of each file."""

    def state(file: str) -> tuple[int, int, int]:
        with suppress(OSError):
            status = os.stat(file)
            return status.st_size, status.st_mtime_ns, status.st_ino & (1 << 63) - 1
        return GONE

    with ThreadPoolExecutor(READERS, "beyondcls-digests") as readers:
        return np.array(list(readers.map(state, files, chunksize=256)), np.int64).reshape(-1, 3)


def _remembered(
    memory: Memory | None, files: Sequence[str], states: Int64[np.ndarray, "F 3"]
) -> dict[tuple[str, int, int], bytes]:
    """Digests by file, offset and size, of files that have not changed."""
    if memory is None:
        return {}
    numbers = {file: number for number, file in enumerate(files)}
    ours = np.array([numbers.get(file, -1) for file in memory.files], np.int64)
    same = (ours >= 0) & (memory.states == np.append(states, [GONE], 0)[ours]).all(1) & (memory.states[:, 0] >= 0)
    rows = np.flatnonzero(same[memory.number])
    columns = zip(memory.number[rows].tolist(), memory.offset[rows].tolist(), memory.nbytes[rows].tolist(), strict=True)
    return {
        (memory.files[file], offset, nbytes): digest.tobytes()
        for (file, offset, nbytes), digest in zip(columns, memory.digest[rows], strict=True)
    }


def _remember(
    path: Path,
    samples: Sequence[Sample],
    named: Sequence[str],
    digests: UInt8[np.ndarray, "N 16"],
    files: Sequence[str],
    before: Int64[np.ndarray, "F 3"],
) -> None:
    """Write down digests of files that stood still while they were read, beside what is known of other files of the source."""
    settled = (before == _states(files)).all(1) & (before[:, 0] >= 0) & (before[:, 1] < time.time_ns() - SETTLED_NS)
    numbers = {file: number for number, file in enumerate(files)}
    rows = [row for row, file in enumerate(named) if file and settled[numbers[file]]]
    ours = Memory(
        list(files),
        before,
        np.array([numbers[named[row]] for row in rows], np.int64),
        np.array([samples[row].offset for row in rows], np.int64),
        np.array([samples[row].size for row in rows], np.int64),
        digests[rows],
    )
    (_joined(ours, theirs) if (theirs := Memory.read(path)) is not None else ours).write(path)


def _joined(ours: Memory, theirs: Memory) -> Memory:
    """What both remember; of files that both know, ours."""
    known = set(ours.files)
    kept = np.array([file not in known for file in theirs.files], bool)
    renumbered = np.cumsum(kept) - 1 + len(ours.files)
    rows = kept[theirs.number]
    return Memory(
        [*ours.files, *(file for file, keeps in zip(theirs.files, kept, strict=True) if keeps)],
        np.concatenate([ours.states, theirs.states[kept]]),
        np.concatenate([ours.number, renumbered[theirs.number[rows]]]),
        np.concatenate([ours.offset, theirs.offset[rows]]),
        np.concatenate([ours.nbytes, theirs.nbytes[rows]]),
        np.concatenate([ours.digest, theirs.digest[rows]]),
    )
