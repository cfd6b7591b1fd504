"""Decoding images on threads beside the one that encodes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from extract.loop import Passes, decoders
from tests.extract.tiny import tiny_encoder

SIDE = 256  # pixels: PyTorch shares the work of copying so many among its threads


class OneImage:
    """A single picture, from memory."""

    samples = (SimpleNamespace(id="0", problem=None),)

    def image(self, row: int, held: object = None) -> Image.Image:
        return Image.linear_gradient("L").convert("RGB").resize((SIDE + 20, SIDE))


@pytest.fixture
def four_threads():
    """PyTorch has as many to share its work among."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def n_threads() -> int:
    """Of this process, those of OpenMP included."""
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.usefixtures("four_threads")
def test_a_decoder_wakes_no_threads_of_pytorch():
    """They would take turns with those that encode: extraction by two cores was a fifth slower."""
    encoder = tiny_encoder(img_size=SIDE)
    targets = torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8)
    request = SimpleNamespace(encoder=encoder, images=OneImage())
    with ThreadPoolExecutor(1) as decoders:
        decoders.submit(bool).result()
        before = n_threads()
        decoded = decoders.submit(Passes(request, 2, decoders).decode, 0, [0, 1], {0: targets[0], 1: targets[1]}).result()
        assert n_threads() == before
        decoders.submit(torch.zeros_like(targets).copy_, targets.transpose(2, 3)).result()
        assert n_threads() > before  # so they would have been seen
    assert decoded.problem is None
    for view, pixels in enumerate(targets):
        assert torch.equal(pixels, encoder.views.cut(request.images.image(0), "0", view)[0])


@pytest.mark.parametrize(("n", "device", "expected"), [(None, "cpu", 4), (None, "cuda", 6), (3, "cuda", 3), (9, "cpu", 9)])
def test_as_many_threads_as_cores_beside_a_gpu(n, device, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        with decoders(n, torch.device(device)) as threads:
            assert threads._max_workers == expected
    finally:
        torch.set_num_threads(before)
