"""Processes of this machine: same bytes as one, whatever happens to them."""

import multiprocessing
from pathlib import Path

import pytest
import torch

from extract.datasets import ImageSet, open_images
from pipelines.engines.processes import Processes, cores
from store import BeyondClsError
from tests import forked  # noqa: F401  # its server has imported what is slow to import
from tests.extract.pictures import write_file
from tests.folders import files
from tests.pipelines.engines.workers import Load, N, Seen, extracted, extracted_on, write_images

TWO = Processes(tasks=2, device="cpu")


def test_a_worker_that_is_killed_is_replaced(images: ImageSet, whole: dict[str, bytes], tmp_path: Path) -> None:
    seen, load, devices = Seen(), Load(tmp_path, n=2), dict[int, str]()
    extracted_on(TWO, load, images, tmp_path / "f", seen, devices=devices.update)
    assert files(tmp_path / "f") == whole
    assert sum(seen.steps) == N
    assert seen.steps.count(-8) == 2, "a batch of the unit was done, and is to be done again"
    assert load.n_loaded == 4
    (warning,) = seen.warnings
    assert warning.startswith("unit 4 (rows 128 to 149) has failed, and is done again: its process was killed (SIGKILL)")
    assert devices == dict.fromkeys(range(5), "cpu")
    assert not (tmp_path / ".staging").exists(), "nothing is left behind"


def test_a_stop_lets_workers_finish_what_they_have(images: ImageSet, whole: dict[str, bytes], tmp_path: Path) -> None:
    steps: list[int] = []
    seen = Seen(steps.append, lambda: sum(steps) > 0)
    assert extracted_on(Processes(tasks=1, device="cpu"), Load(tmp_path), images, tmp_path / "f", seen) is None
    assert sum(steps) == 32
    extracted(images, tmp_path / "f")
    assert files(tmp_path / "f") == whole


def test_what_another_set_has_is_taken_over(images: ImageSet, whole: dict[str, bytes], tmp_path: Path) -> None:
    """Also the first rows of the last unit: images were added, and workers would fail at one of the old ones."""
    extracted(images.part(range(N - 10)), tmp_path / "f")
    load = Load(tmp_path, n=9, how="raise")
    extracted_on(Processes(tries=1, device="cpu"), load, images, tmp_path / "f", Seen(), existing="update")
    assert load.n_loaded == 1
    assert files(tmp_path / "f") == whole


@pytest.mark.parametrize(
    ("how", "problem"),
    [("kill", r"its process was killed \(SIGKILL\), perhaps for lack"), ("raise", "RuntimeError: the memory of the GPU is")],
)
def test_a_unit_that_fails_again_and_again(
    how: str, problem: str, images: ImageSet, whole: dict[str, bytes], tmp_path: Path
) -> None:
    engine, load = Processes(tasks=1, tries=2, device="cpu"), Load(tmp_path, n=3, how=how)
    with pytest.raises(BeyondClsError, match=rf"unit 4 \(rows 128 to 149\) has failed 2 times, the last time with: {problem}"):
        extracted_on(engine, load, images, tmp_path / "f", Seen())
    assert load.n_loaded == 2
    assert not multiprocessing.active_children()
    extracted(images, tmp_path / "f")
    assert files(tmp_path / "f") == whole, "the same command goes on"


def test_a_damaged_image_is_no_reason_to_try_again(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    write_file(tmp_path / "images/a/0100.png", b"none")
    images, load = open_images(str(tmp_path / "images")), Load(tmp_path)
    message = r"^'a/0100' in .*0100.png cannot be decoded: .*\nmend the data, or go on with --on-error record"
    with pytest.raises(BeyondClsError, match=message):
        extracted_on(TWO, load, images, tmp_path / "f", Seen())
    assert load.n_loaded <= 2


def test_an_interrupt_ends_all(images: ImageSet, whole: dict[str, bytes], tmp_path: Path) -> None:
    def interrupt(n: int) -> None:
        if n:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extracted_on(TWO, Load(tmp_path), images, tmp_path / "f", Seen(interrupt))
    assert not multiprocessing.active_children()
    extracted(images, tmp_path / "f")
    assert files(tmp_path / "f") == whole


@pytest.mark.parametrize(
    ("given", "n_gpus", "devices"),
    [
        ({}, 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ({"gpus": "all"}, 2, ["cuda:0", "cuda:1"]),
        ({"gpus": 1, "device": "cuda"}, 2, ["cuda:0"]),
        ({"tasks": 3}, 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ({"tasks": 2, "device": "cpu"}, 2, ["cpu", "cpu"]),
        ({}, 0, ["cpu"] * max(1, cores() // 4)),
    ],
)
def test_devices(given: dict, n_gpus: int, devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    assert Processes(**given).devices() == devices


@pytest.mark.parametrize(
    ("given", "n_gpus", "message"),
    [
        (
            {"gpus": "all"},
            0,
            "gpus is all, but torch sees none here; leave it out, or give --tasks N for processes on the CPU",
        ),
        ({"gpus": 3}, 2, "gpus is 3, but torch sees 2 here"),
        (
            {"device": "cuda:1"},
            2,
            "device is 'cuda:1', which is one device for several workers; give auto, cpu or cuda",
        ),
    ],
)
def test_devices_that_are_not_there(given: dict, n_gpus: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    with pytest.raises(BeyondClsError, match=message):
        Processes(**given).devices()
