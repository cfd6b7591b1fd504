"""Files that nobody should trust, read by another process, which may crash, hang or take too much memory in its place."""

import argparse
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.forked import CONTEXT, start

MEMORY_NBYTES = 4 << 30  # beyond what the process has when it begins
SECONDS = 20


class Reading:
    """A process that reads one file after the other; a new one where it dies.

    Args:
        kind: "checkpoint", "tar" or "matlab".
    """

    def __init__(self, kind: str):
        self._kind = kind
        self._process: Any = None

    def outcome(self, content: bytes) -> str:
        """What became of a file: "read", "refused: …", or what must not be: "crashed …", "hung", "raised …", "holds …"."""
        if self._process is None:
            self._answers, theirs = CONTEXT.Pipe()
            self._process = start(_serve, self._kind, theirs)
            theirs.close()
            assert self._answers.recv() == "ready"
        self._answers.send_bytes(content)
        if not self._answers.poll(SECONDS):
            self.close()
            return "hung"
        try:
            return str(self._answers.recv())
        except (EOFError, ConnectionResetError):
            process, self._process = self._process, None
            process.join()
            return f"crashed with status {process.exitcode}"

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


@contextmanager
def reading(kind: str) -> Iterator[Reading]:
    process = Reading(kind)
    try:
        yield process
    finally:
        process.close()


def _serve(kind: str, files: Connection) -> None:
    import numpy as np
    import torch

    from extract.datasets import open_images
    from extract.datasets.listed import matlab_variable
    from extract.encoders.weights import read_checkpoint
    from store import BeyondClsError

    plain = {str, bytes, int, float, bool, complex, type(None), torch.Tensor, *{np.dtype(c).type for c in "bBhHiIlLefd?"}}
    holders = {"Stored", "Named", "NumberDtype"}

    def read_tar(file: Path) -> Any:
        images = open_images(str(file))
        if problems := images.all_problems():
            raise BeyondClsError("; ".join(problems))
        return [sample.id for sample in images.samples]

    readers: Any = {"checkpoint": read_checkpoint, "tar": read_tar, "matlab": lambda file: repr(matlab_variable(file, "x"))}

    def problem(content: Any, nbytes: int) -> str:
        todo, seen = [content], set()
        while todo:
            value = todo.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if type(value) in (dict, argparse.Namespace):
                content = value if type(value) is dict else vars(value)
                todo += [*content.keys(), *content.values()]
            elif type(value) in (list, tuple, set):
                todo += value
            elif type(value) not in plain and type(value).__name__ not in holders:
                return f"holds a {type(value)}"
            if type(value) is torch.Tensor:
                if value.numel() * value.itemsize > nbytes or value.untyped_storage().nbytes() > nbytes:
                    return f"holds {value.shape} in {nbytes} bytes"
                value.clone()
        return ""

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "w.tar" if kind == "tar" else "w.pth")
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_NBYTES,) * 2)
        files.send("ready")
        while True:
            file.write_bytes(files.recv_bytes())
            try:
                answer = problem(readers[kind](file), file.stat().st_size) or "read"
            except BeyondClsError as error:
                answer = f"refused: {error}".replace("\n", " ")[:300]
            except BaseException as error:
                answer = f"raised {error!r}".replace("\n", " ")[:300]
            files.send(answer)
