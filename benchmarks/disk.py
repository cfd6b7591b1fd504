"""How fast a disk gives the shards of a store, however they are asked for: what readers are compared with.

`python -m benchmarks.disk FOLDER` reads all of them past the page cache with 1 to 32 reads in flight, of a MiB and of a chunk
of the store, one way after the other, and prints bytes, seconds and CPU seconds of each way as JSON.
The bytes are not used: nothing is compared, mixed or put together.
"""

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data import NAME, ROW_NBYTES
from store.places.place import ALIGNMENT, aligned_memory

DEPTHS = (1, 2, 4, 8, 16, 32)
CHUNK_NBYTES = 32 * ROW_NBYTES
SIZES = {"MiB": 1 << 20, "chunk": CHUNK_NBYTES + -CHUNK_NBYTES % ALIGNMENT}


def read(files: list[Path], depth: int, size: int) -> int:
    """Read files from beginning to end, `size` bytes at a time in each of `depth` threads; gives the number of bytes."""
    descriptors = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
    pieces = iter([(d, at) for d in descriptors for at in range(0, os.fstat(d).st_size, size)])
    lock, counts = threading.Lock(), [0] * depth

    def reading(number: int) -> None:
        memory = aligned_memory(size)
        while True:
            with lock:
                descriptor, at = next(pieces, (-1, 0))
            if descriptor < 0:
                return
            counts[number] += os.preadv(descriptor, [memory], at)

    threads = [threading.Thread(target=reading, args=(number,)) for number in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for descriptor in descriptors:
        os.close(descriptor)
    return sum(counts)


def ways(folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Each way's name, and what it took."""
    files = sorted(file for file in (folder / "store" / NAME / "c").rglob("*") if file.is_file())
    for name, size in SIZES.items():
        for depth in DEPTHS:
            cpu, began = _cpu(), time.perf_counter()
            nbytes = read(files, depth, size)
            yield (
                f"{depth} x {name}",
                {"nbytes": nbytes, "seconds": time.perf_counter() - began, "cpu": _cpu() - cpu, "peak": 0},
            )


def _cpu() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


if __name__ == "__main__":
    print(json.dumps(dict(ways(Path(sys.argv[1])))))
