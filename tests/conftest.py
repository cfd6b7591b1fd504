"""Where tests run, and their order; `--no-loadscope-reorder` keeps it where several processes share them."""

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import shapes  # before anything of the program is imported

ROOT = Path(__file__).resolve().parents[1]

MEMORY = Path("/dev/shm")  # a file system in memory: on some disks, to remove an empty folder takes milliseconds
gc.disable()  # until all is imported and collected
os.environ["BEYONDCLS_CONFIG"] = ""  # a developer's own configuration is not read, by processes that tests start neither
os.environ["BEYONDCLS_LOG"] = ""  # nor are logs of commands written to the developer's folder
os.environ["BEYONDCLS_INDEX"] = ""  # nor is remembered which images were read
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU, operation by operation; read when Triton is imported


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to run in with the quickstart's images and encoders: what a pipeline has left in the clone is not there."""
    folder, before = tmp_path_factory.mktemp("elsewhere"), Path.cwd()
    (folder / "quickstart").symlink_to(ROOT / "quickstart")
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def _power_does_not_fail() -> Iterator[None]:
    """Half of the time of a small write is spent in waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


def pytest_configure() -> None:
    """Let temporary folders be in memory where it does what a disk does: large, of programs too, and past the page cache."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < 4 << 30 or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=MEMORY) as file:
        os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_runtest_setup() -> None:
    shapes.CALLS.clear()


def pytest_collection_finish() -> None:
    """What was imported and collected stays: looking through it for garbage, again and again, takes a second each time."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: in the end no process waits for another that has just begun one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
