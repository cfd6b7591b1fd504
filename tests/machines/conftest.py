"""Commands of machines, which two processes answer: one with all packages, and one without those that read images."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines.machine import IMAGE_PACKAGES, Machine
from tests.machines.served import commands_in


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a machine with all packages."""
    with commands_in(tmp_path_factory.mktemp("served") / "bin") as commands:
        yield commands


@pytest.fixture(scope="package")
def served_without_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a machine that only probes."""
    folder = tmp_path_factory.mktemp("served")
    with commands_in(folder / "bin", python=Machine(folder / "machine", without=IMAGE_PACKAGES).python) as commands:
        yield commands
