"""The images of `workers`, and the set that one process makes of them."""

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from pipelines import cli
from tests.folders import files
from tests.pipelines.engines.workers import Load, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder)
    return folder


@pytest.fixture(scope="session")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    with chdir(folder):
        cli.app(list(map(str, Load(folder).command(images, "f"))), standalone_mode=False)
    return files(folder / "f")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Load]:
    """`Load` in a folder to give commands in."""
    monkeypatch.chdir(tmp_path)
    return lambda *given: Load(tmp_path, *given)
