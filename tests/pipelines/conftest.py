"""The command line, for tests of any command; images and a ViT that take no time, for training the quickstart's encoders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from extract.encoders.quickstart import ARCHITECTURE
from tests.pipelines.test_cli import run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit status, standard output and standard error of `beyondcls ARGUMENTS`, which never has a traceback."""

    def command(*arguments: object) -> tuple[int, str, str]:
        status, out, err = run(monkeypatch, capsys, *arguments)
        assert "Traceback" not in err
        return status, out, err

    return command


@pytest.fixture
def beyondcls(command: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """What `beyondcls ARGUMENTS` says, without line breaks; with `fails` it must end with an error in one line."""

    def run_command(*arguments: object, fails: bool = False) -> str:
        status, out, err = command(*arguments)
        assert status == int(fails), out + err
        return " ".join((out + err).split())

    return run_command


@pytest.fixture(scope="session")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of CIFAR-10's form: noise with a class in its brightness."""
    random = np.random.default_rng(0)
    y, yt = np.arange(80) % 10, np.arange(40) % 10

    def images(labels: np.ndarray) -> np.ndarray:
        noise = random.integers(0, 60, (len(labels), 32, 32, 3))
        return (noise + 18 * labels[:, None, None, None]).astype(np.uint8)

    path = tmp_path_factory.mktemp("cifar") / "cifar10.npz"
    np.savez(path, x=images(y), y=y, xt=images(yt), yt=yt)
    return path


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quickstart's ViT has one block: what is tested of a run is not what it learns."""
    monkeypatch.setitem(ARCHITECTURE, "depth", 1)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing those of a report takes longer than all that is asked for where they are not looked at."""
    monkeypatch.setattr("pipelines.report.drawing._save", lambda *_, **__: b"<svg></svg>")
