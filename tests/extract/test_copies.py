"""Features leave the device one batch behind the encoder."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from extract.copies import Copies
from extract.datasets import ImageSet
from extract.run import extract
from tests.extract.tiny import tiny_encoder
from tests.folders import files


def behind() -> Copies:
    """With a thread, as on a GPU, but without its stream."""
    copies = Copies(torch.device("cpu"))
    copies._thread = ThreadPoolExecutor(1)
    return copies


def test_at_once_without_a_gpu() -> None:
    done = []
    Copies(torch.device("cpu")).run(lambda: done.append(threading.current_thread()))
    assert done == [threading.current_thread()]


def test_one_behind() -> None:
    copies, go, done = behind(), threading.Event(), []

    def first() -> None:
        go.wait()
        done.append(1)

    copies.run(first)  # returns, though the job cannot end yet
    assert not done
    go.set()
    copies.run(lambda: done.append(2))
    assert done[0] == 1  # the one before is done
    copies.wait()
    assert done == [1, 2]


def test_an_error_is_raised_with_the_next_job_or_at_the_end() -> None:
    copies, done = behind(), []
    copies.run(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        copies.run(lambda: done.append(1))
    copies.run(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        copies.wait()
    copies.wait()  # said once
    assert not done


def test_the_same_bytes(forty: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(tiny_encoder(), forty, tmp_path / "once", batch_size=7, shard_rows=32, views=2)
    monkeypatch.setattr("extract.units.Copies", lambda device: behind())
    extract(tiny_encoder(), forty, tmp_path / "behind", batch_size=7, shard_rows=32, views=2)
    assert files(tmp_path / "once") == files(tmp_path / "behind")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu(forty: ImageSet, tmp_path: Path) -> None:
    options = {"batch_size": 7, "dtype": "float32", "views": 2}
    on_cpu = extract(tiny_encoder(), forty, tmp_path / "here", **options)  # type: ignore[arg-type]
    encoder = tiny_encoder()
    encoder.model.to("cuda")
    on_gpu = extract(encoder, forty, tmp_path / "there", **options)  # type: ignore[arg-type]
    assert on_cpu is not None
    assert on_gpu is not None
    for name in on_cpu.arrays:
        if not name.startswith("images/"):
            ours, theirs = (torch.from_numpy(store.array(name).all()) for store in (on_cpu, on_gpu))
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
