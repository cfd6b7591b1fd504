"""Running readers in separate processes, with files in or out of the page cache."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def forget(folder: Path) -> None:
    """Write back and drop every file below `folder` from the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def remember(folder: Path) -> None:
    """Read every file below `folder` from beginning to end into the page cache."""
    forget(folder)  # random reads leave files cached in small pieces, which are slower
    piece = bytearray(8 << 20)
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as source:
                while source.readinto(piece):
                    pass


def conclude(ratios: Mapping[str, float | str], is_evidence: bool, digits: int = 3) -> None:
    """Print the last line of a benchmark, JSON: its ratios, and whether it was large enough for them to say something.

    What takes a second is imports, the first batch and the disk's mood: quick runs of the same program gave 0.61 to 0.89 for
    a ratio that is 0.94.
    """
    print(json.dumps({k: v if isinstance(v, str) else round(v, digits) for k, v in ratios.items()} | {"evidence": is_evidence}))


def measured(
    reader: str, way: str, folder: Path, batch: int, codecs: Sequence[str], states: Sequence[str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What `benchmarks.readers` prints, by codec and state: nbytes, seconds, cpu, peak."""
    return _answer("benchmarks.readers", reader, way, str(folder), str(batch), ",".join(codecs), ",".join(states))


def measured_disk(folder: Path) -> dict[str, dict[str, Any]]:
    """What `benchmarks.disk` prints: nbytes, seconds and cpu of each way."""
    forget(folder)
    return _answer("benchmarks.disk", str(folder))


def _answer(module: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
