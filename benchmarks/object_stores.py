"""What reads and writes an object store with fewer seconds and less of the processor: obstore against s3fs.

    python -m benchmarks.object_stores [--quick] [--server seaweedfs|moto] [--gb 1] [--rounds 5] [--endpoint URL]

Asks SeaweedFS, or moto, each on this machine in processes of its own; or, with --endpoint, a service that runs already, in its
bucket `benchmark` (keys from the environment). Both clients do the same by as many threads, one after the other in each round,
the first in turn. CPU seconds are those of the client's process. Each ratio is the median over rounds of (s3fs / obstore), of
seconds or, `…_cpu`, of CPU seconds: more than 1 where obstore is faster.

- `ranges`: pieces of 8 MiB of --gb in objects of 64 MiB, in random order, 16 in flight, as a loader asks for them.
- `write_16`, `write_64`: --gb in objects of so many MiB, 8 in flight, those of 64 MiB in parts of 16.
- `list`: 1,000 names with their sizes. `small`: 1,000 objects of 2 kB, read 16 in flight.
- `create`: 200 objects of 100 bytes where there are none (`If-None-Match: *`), 8 in flight, and again where they are.

The last line is JSON. Needs obstore, twice --gb of disk, and an idle machine.
"""

import argparse
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.tasks import CREDENTIALS, at_endpoint
from benchmarks.tasks import served as moto
from benchmarks.timing import conclude
from store.places.object_store import AT_ONCE, PARTS, PIECE_NBYTES, REQUESTS

BUCKET, SHARD_NBYTES, N_SMALL, N_CREATED = "benchmark", 64 << 20, 1000, 200


class Client(ABC):
    """Objects of the bucket by their names."""

    @abstractmethod
    def range(self, name: str, start: int, stop: int) -> int: ...

    @abstractmethod
    def put(self, name: str, content: bytes) -> None: ...

    @abstractmethod
    def create(self, name: str, content: bytes) -> bool: ...

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]: ...


class S3fs(Client):
    def __init__(self) -> None:
        import s3fs  # type: ignore[import-untyped]

        self._fs = s3fs.S3FileSystem(config_kwargs={"max_pool_connections": REQUESTS})

    def range(self, name: str, start: int, stop: int) -> int:
        return len(self._fs.cat_file(f"{BUCKET}/{name}", start=start, end=stop))

    def put(self, name: str, content: bytes) -> None:
        self._fs.pipe_file(f"{BUCKET}/{name}", content, **PARTS)

    def create(self, name: str, content: bytes) -> bool:
        try:
            self._fs.pipe_file(f"{BUCKET}/{name}", content, mode="create", **PARTS)
        except OSError:  # FileExistsError, or what it makes of the status 412
            return False
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        self._fs.invalidate_cache()
        return {name: entry["size"] for name, entry in self._fs.find(f"{BUCKET}/{folder}", detail=True).items()}


class Obstore(Client):
    def __init__(self) -> None:
        from obstore.store import S3Store

        endpoint = os.environ["AWS_ENDPOINT_URL"]
        self._store = S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True, "timeout": "10m"})

    def range(self, name: str, start: int, stop: int) -> int:
        return len(memoryview(self._store.get_range(name, start=start, end=stop)))

    def put(self, name: str, content: bytes) -> None:
        parts = {"chunk_size": PARTS["chunksize"], "max_concurrency": PARTS["max_concurrency"]}
        self._store.put(name, content, use_multipart=len(content) > 2 * PARTS["chunksize"], **parts)

    def create(self, name: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        try:
            self._store.put(name, content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        return {entry["path"]: entry["size"] for chunk in self._store.list(folder) for entry in chunk}


class Work:
    """What both clients do, each with names of its own where it writes; `again` makes these new."""

    def __init__(self, nbytes: int):
        self.n_shards, self.again, self.made = max(1, nbytes // SHARD_NBYTES), 0, 0
        self._content = np.random.default_rng(0).bytes(SHARD_NBYTES)

    def prepare(self, client: Client) -> None:
        for shard in range(self.n_shards):
            client.put(f"shards/{shard}", self._content)
        _in_flight(REQUESTS, lambda i: client.put(f"small/{i}", self._content[:2000]), range(N_SMALL))

    def ranges(self, client: Client) -> None:
        every = [(shard, at) for shard in range(self.n_shards) for at in range(0, SHARD_NBYTES, PIECE_NBYTES)]
        order = [every[i] for i in np.random.default_rng(self.again).permutation(len(every))]
        got = _in_flight(REQUESTS, lambda piece: client.range(f"shards/{piece[0]}", piece[1], piece[1] + PIECE_NBYTES), order)
        assert sum(got) == self.n_shards * SHARD_NBYTES

    def write_16(self, client: Client) -> None:
        self._write(client, 16 << 20)

    def write_64(self, client: Client) -> None:
        self._write(client, SHARD_NBYTES)

    def _write(self, client: Client, nbytes: int) -> None:
        content = self._content[:nbytes]
        _in_flight(AT_ONCE, lambda i: client.put(f"written/{i}", content), range(self.n_shards * SHARD_NBYTES // nbytes))

    def list(self, client: Client) -> None:
        assert sum(client.sizes("small").values()) == 2000 * N_SMALL

    def small(self, client: Client) -> None:
        assert sum(_in_flight(REQUESTS, lambda i: client.range(f"small/{i}", 0, 2000), range(N_SMALL))) == 2000 * N_SMALL

    def create(self, client: Client) -> None:
        self.made += 1
        for is_new in (True, False):
            made = _in_flight(AT_ONCE, lambda i: client.create(f"made/{self.made}/{i}", bytes(100)), range(N_CREATED))
            assert made == [is_new] * N_CREATED, "the service does not do what If-None-Match asks for"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="0.13 GB, one round: under a minute, and no evidence")
    parser.add_argument("--server", choices=("seaweedfs", "moto"), default="seaweedfs")
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--endpoint", help="of a service to take in place of one of this machine, e.g. http://127.0.0.1:9000")
    given = parser.parse_args()
    size, rounds = (0.14, 1) if given.quick else (given.gb, given.rounds)
    with at_endpoint(given.endpoint) if given.endpoint else moto(BUCKET) if given.server == "moto" else seaweedfs():
        ratios = run(int(size * 1e9), rounds)
    conclude(ratios, size >= 1 and rounds >= 3)


@contextmanager
def seaweedfs() -> Iterator[None]:
    from tests.s3 import seaweedfs as server

    os.environ.update(CREDENTIALS)  # which the server takes from its environment, too
    with server() as url, at_endpoint(url):
        yield


def run(nbytes: int, rounds: int) -> dict[str, float]:
    import s3fs

    s3fs.S3FileSystem().mkdirs(BUCKET, exist_ok=True)
    clients: dict[str, Client] = {"s3fs": S3fs(), "obstore": Obstore()}
    work, ratios = Work(nbytes), dict[str, float]()
    work.prepare(clients["obstore"])
    for name in ("ranges", "write_16", "write_64", "list", "small", "create"):
        took: dict[str, list[tuple[float, float]]] = {client: [] for client in clients}
        for work.again in range(rounds + 1):
            for client in list(clients)[:: 1 if work.again % 2 else -1]:
                cpu, began = time.process_time(), time.perf_counter()
                getattr(work, name)(clients[client])
                took[client].append((time.perf_counter() - began, time.process_time() - cpu))
        gb = work.n_shards * SHARD_NBYTES / 1e9 if name in ("ranges", "write_16", "write_64") else None
        for client, every in took.items():
            print(f"{name:8} {client:7} {_described(every[1:], gb)}", flush=True)  # the first round connects
        for measure, end in enumerate(("", "_cpu")):
            pairs = zip(took["s3fs"][1:], took["obstore"][1:], strict=True)
            ratios[f"{name}{end}"] = statistics.median(theirs[measure] / max(ours[measure], 1e-9) for theirs, ours in pairs)
    return ratios


def _described(every: list[tuple[float, float]], gb: float | None) -> str:
    seconds, cpu = (sorted(values) for values in zip(*every, strict=True))
    if gb is None:
        return f"{statistics.median(seconds):.3f} s ({seconds[0]:.3f} to {seconds[-1]:.3f}), {statistics.median(cpu):.3f} CPU s"
    rates, cost = [gb / one for one in seconds], [one / gb for one in cpu]
    return (
        f"{statistics.median(rates):.2f} GB/s ({rates[-1]:.2f} to {rates[0]:.2f}), "
        f"{statistics.median(cost):.2f} CPU s a GB ({cost[0]:.2f} to {cost[-1]:.2f})"
    )


def _in_flight(n: int, ask: Callable[[Any], Any], items: Any) -> list[Any]:
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(ask, items))


if __name__ == "__main__":
    main()
