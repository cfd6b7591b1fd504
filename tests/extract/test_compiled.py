"""A compiled encoder sees batches of one size, so that it is compiled once."""

import pytest
import torch

from extract.run import extract
from tests.extract.tiny import tiny_encoder
from tests.folders import files


@pytest.fixture
def sizes(monkeypatch):
    """Of the batches that compiled code is given; it is not compiled here."""
    seen = []

    def compiled(forward, **_):
        def run(images):
            seen.append(len(images))
            return forward(images)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    return seen


def test_all_batches_have_one_size(sizes, images, tmp_path):
    """With two unreadable images of 70, two views, and a sample compared; one image alone gives names and shapes."""
    encoder = tiny_encoder()
    encoder.run_with(compile=True)
    options = {"batch_size": 12, "shard_rows": 32, "views": 2, "on_error": "record", "vectors": "all", "dtype": "float32"}
    extract(encoder, images, tmp_path / "compiled", **options)
    assert set(sizes) == {12}
    assert len(sizes) == 2 * (3 + 3 + 1)
    extract(encoder, images, tmp_path / "compiled", **options)  # kept: a sample is computed
    assert set(sizes) == {12}


def test_the_same_features(sizes, images, tmp_path):
    """Bit for bit, as the multiplications of this CPU don't depend on the size of these batches."""
    encoder, plain = tiny_encoder(), tiny_encoder()
    encoder.run_with(compile=True)
    encoder._linear = plain._linear
    options = {"shard_rows": 32, "views": 2, "on_error": "record", "vectors": "all"}
    extract(encoder, images, tmp_path / "compiled", batch_size=12, **options)
    extract(plain, images, tmp_path / "plain", batch_size=12, **options)
    assert sizes
    assert files(tmp_path / "compiled") == files(tmp_path / "plain")


def test_branches_are_dropped_outside_of_compiled_code(sizes, images, tmp_path):
    """Which does not see that a hook is another one than when it was compiled."""
    encoder = tiny_encoder()
    encoder.run_with(compile=True)
    options = {"batch_size": 12, "shard_rows": 32, "on_error": "record"}
    extract(encoder, images, tmp_path / "compiled", **options, views=2, drop_path=0.5)
    assert len(sizes) == 3 + 3 + 1, "of view 0 alone"
