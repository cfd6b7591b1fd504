"""Batches: decoded beside the thread that encodes, halved where memory does not suffice; the stage that binds is named."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from extract import loop
from extract.encoders import Encoder
from extract.loop import Passes, decoders
from extract.requests import Request
from extract.run import create, extract
from extract.stages import COPYING_BACK, COPYING_IN, DECODING, ELSE, ENCODING, STAGES, WRITING, Spent, StageTimes
from extract.transform import Views
from extract.writing import Settings
from store import BeyondClsError, FeatureWriter
from store.loading.placement import is_out_of_memory
from tests.extract.late import LateStreams
from tests.extract.tiny import tiny_encoder
from tests.folders import files

SIDE = 256  # pixels: PyTorch shares the work of copying so many among its threads


@pytest.fixture
def six_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    yield
    torch.set_num_threads(before)


def n_threads() -> int:
    """Of this process, those of OpenMP included."""
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.usefixtures("six_threads")
@pytest.mark.parametrize("cut", ["pillow", "torch"])
def test_a_decoder_wakes_no_threads_of_pytorch(cut):
    """They would take turns with those that encode: extraction by two cores was a fifth slower."""
    encoder, image = tiny_encoder(img_size=SIDE), Image.linear_gradient("L").convert("RGB").resize((SIDE + 20, SIDE))
    encoder.views = Views(encoder.config, cut)
    targets = torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8)
    images = SimpleNamespace(samples=[SimpleNamespace(id="0", problem=None)])
    request = SimpleNamespace(encoder=encoder, images=images, image=lambda row, held: image)
    with ThreadPoolExecutor(1) as decoders:
        decoders.submit(bool).result()
        before = n_threads()
        decoded = decoders.submit(Passes(request, 2, decoders).decode, 0, [0, 1], {0: targets[0], 1: targets[1]}).result()
        assert n_threads() == before
        decoders.submit(torch.zeros_like(targets).copy_, targets.transpose(2, 3)).result()
        assert n_threads() > before  # so they would have been seen
    assert decoded.problem is None
    for view, pixels in enumerate(targets):
        assert torch.equal(pixels, encoder.views.cut(image, "0", view)[0])


@pytest.mark.usefixtures("six_threads")
@pytest.mark.parametrize(("n", "device", "expected"), [(None, "cpu", 4), (None, "cuda", 6), (3, "cuda", 3), (9, "cpu", 9)])
def test_as_many_threads_as_cores_beside_a_gpu(n, device, expected):
    with decoders(n, torch.device(device)) as pool:
        assert pool._max_workers == expected


class Narrow(Encoder):
    room = 5
    error: Exception = torch.OutOfMemoryError("CUDA out of memory")

    def __call__(self, images: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if len(images) > self.room:
            raise self.error
        return super().__call__(images, *arguments, **named)


@pytest.fixture
def narrow():
    return Narrow("tiny", tiny_encoder().model, {})


def test_batches_are_halved(narrow, forty, tmp_path):
    options = {"shard_rows": 32, "statistics": (), "maps": False, "views": 2, "drop_path": 0.9}  # images keep their draws
    extract(Encoder("tiny", narrow.model, {}), forty, tmp_path / "wide", batch_size=4, **options)
    warned: list[str] = []
    extract(narrow, forty, tmp_path / "narrow", batch_size=32, **options, warn=warned.append)
    assert warned == [f"out of memory: going on with batches of {n}" for n in (16, 8, 4)]
    assert files(tmp_path / "narrow") == files(tmp_path / "wide")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB, other allocations: 1.00 KB)"),
        RuntimeError("std::bad_alloc"),
    ],
    ids=str,
)
def test_errors_that_say_that_memory_does_not_suffice(error):
    assert is_out_of_memory(error)


def test_not_even_one_image_and_other_errors(narrow, forty, tmp_path):
    request = Request.resolve(narrow, forty)
    assert request.example.patch
    narrow.room = 0
    with pytest.raises(BeyondClsError, match="memory does not suffice for one image through tiny"):
        create(request, tmp_path / "f", Settings(batch_size=2))
    narrow.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        create(request, tmp_path / "f", Settings(batch_size=2))


@pytest.fixture
def sizes(monkeypatch):
    """Of the batches that compiled code is given; it is not compiled here."""
    seen = []
    monkeypatch.setattr(torch, "compile", lambda forward, **_: lambda images: seen.append(len(images)) or forward(images))
    return seen


def test_all_batches_have_one_size_and_give_the_same_features(sizes, images, tmp_path):
    """Bit for bit, as the multiplications of this CPU don't depend on the size of these batches."""
    encoder, plain = tiny_encoder(), tiny_encoder()
    encoder.run_with(compile=True)
    encoder._linear = plain._linear
    options = {"batch_size": 12, "shard_rows": 32, "views": 2, "on_error": "record", "vectors": "all"}
    extract(encoder, images, tmp_path / "compiled", **options)
    assert sizes == [12] * 2 * (3 + 3 + 1)
    extract(encoder, images, tmp_path / "compiled", **options)  # kept: a sample is computed
    assert set(sizes) == {12}
    extract(plain, images, tmp_path / "plain", **options)
    assert files(tmp_path / "compiled") == files(tmp_path / "plain")


def test_branches_are_dropped_outside_of_compiled_code(sizes, images, tmp_path):
    """Which does not see that a hook is another one than when it was compiled."""
    encoder = tiny_encoder()
    encoder.run_with(compile=True)
    options = {"batch_size": 12, "shard_rows": 32, "on_error": "record", "views": 2, "drop_path": 0.5}
    extract(encoder, images, tmp_path / "compiled", **options)
    assert len(sizes) == 3 + 3 + 1, "of view 0 alone"


def test_what_is_within_counts_for_itself_up_to_now():
    clock = SimpleNamespace(s=0)
    course = StageTimes(lambda: clock.s)
    clock.s = 5  # before anything is done
    with course.doing(ELSE):
        clock.s += 1
        with course.doing(ENCODING):
            clock.s += 2
            with course.doing(DECODING):
                clock.s += 4
                assert course.spent.seconds[DECODING] == 4
            clock.s += 8
        clock.s += 16
    clock.s += 32
    assert course.spent.seconds == {**dict.fromkeys(STAGES, 0), ELSE: 17, ENCODING: 10, DECODING: 4}


def test_waiting_counts_for_what_the_other_does():
    clock = SimpleNamespace(s=0)
    course, other = StageTimes(lambda: clock.s), StageTimes(lambda: clock.s)
    with other.doing(ENCODING):
        clock.s += 1
        with course.doing(COPYING_IN), course.waiting_for(other, COPYING_BACK):
            clock.s += 2
            with other.doing(WRITING):
                clock.s += 4
    with course.doing(ELSE), course.waiting_for(other, COPYING_BACK):
        clock.s += 8  # it does nothing that it knows of
    assert course.spent.seconds == {**dict.fromkeys(STAGES, 0), ELSE: 0, ENCODING: 2, WRITING: 4, COPYING_BACK: 8}


@pytest.mark.parametrize(
    ("bookkeeping_s", "device_s", "says"),
    [
        (101.0, None, "bookkeeping binds: encoder idle 81 %"),
        (1.0, 75.0, "decoding binds: encoder idle 25 %"),  # a GPU is busy while the thread waits for something else
    ],
)
def test_in_words(bookkeeping_s, device_s, says):
    spent = Spent({**dict.fromkeys(STAGES, 0.0), DECODING: 61.0, ENCODING: 38.0, ELSE: bookkeeping_s}, device_s)
    nothing = StageTimes().spent
    assert (str(spent), spent.is_telling) == (says, True)
    assert (nothing.encoder_idle, nothing.is_telling) == (0, False)


@pytest.mark.parametrize(
    ("stage", "owner", "name", "every", "device"),
    [  # what takes longer, on every nth of its calls
        (DECODING, Passes, "decode", 8, "cpu"),
        (ENCODING, Encoder, "__call__", 1, "late"),
        (COPYING_IN, Passes, "_placed", 1, "late"),
        (COPYING_BACK, loop, "as_array", 1, "late"),
        (WRITING, FeatureWriter, "write_unit", 1, "cpu"),
    ],
)
def test_a_slow_stage_is_named(stage, owner, name, every, device, forty, tmp_path, monkeypatch):
    if device == "late":
        monkeypatch.setattr(loop, "streams_of", lambda _: LateStreams())
    before, calls = getattr(owner, name), itertools.count(1)

    def slowed(*given, **named):
        if next(calls) % every == 0:
            time.sleep(0.3 if stage == WRITING else 0.06)  # of two units one is written while nothing else is to be done
        return before(*given, **named)

    request, reported = Request.resolve(tiny_encoder(), forty, shard_rows=32, statistics=(), maps=False), []
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, slowed)
        create(request, tmp_path / "set", Settings(batch_size=8, workers=1, spent=reported.append))
    (spent,) = reported
    assert spent.binding == stage
    assert spent.total_s >= max(spent.seconds.values())
    create(request, tmp_path / "set", Settings(spent=reported.append))
    assert len(reported) == 1, "nothing was computed"
