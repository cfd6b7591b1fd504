"""A compiled encoder sees batches of one size, so that it is compiled once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from extract.datasets import ImageSet
from extract.encoders import Encoded
from extract.run import extract
from tests.extract.tiny import tiny_encoder
from tests.folders import files


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the batches that compiled code is given; it is not compiled here."""
    seen: list[int] = []

    def compiled(forward: Callable[[torch.Tensor], torch.Tensor], **_: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(images: torch.Tensor) -> torch.Tensor:
            seen.append(len(images))
            return forward(images)

        return run

    monkeypatch.setattr(torch, "compile", compiled)
    return seen


def test_all_batches_have_one_size(sizes: list[int], images: ImageSet, tmp_path: Path) -> None:
    """With two unreadable images of 70, two views, and a sample compared; one image alone gives names and shapes."""
    encoder = tiny_encoder()
    encoder.run_with(compile=True)
    options: Any = {"batch_size": 12, "shard_rows": 32, "views": 2, "on_error": "record", "vectors": "all", "dtype": "float32"}
    extract(encoder, images, tmp_path / "compiled", **options)
    assert set(sizes) == {12}
    assert len(sizes) == 2 * (3 + 3 + 1)
    extract(encoder, images, tmp_path / "compiled", **options)  # kept: a sample is computed
    assert set(sizes) == {12}


def test_the_same_features(sizes: list[int], images: ImageSet, tmp_path: Path) -> None:
    """Bit for bit, as the multiplications of this CPU don't depend on the size of these batches."""
    encoder, plain = tiny_encoder(), tiny_encoder()
    encoder.run_with(compile=True)
    encoder._linear = plain._linear
    options: Any = {"shard_rows": 32, "views": 2, "on_error": "record", "vectors": "all"}
    extract(encoder, images, tmp_path / "compiled", batch_size=12, **options)
    extract(plain, images, tmp_path / "plain", batch_size=12, **options)
    assert sizes
    assert files(tmp_path / "compiled") == files(tmp_path / "plain")


def test_branches_are_dropped_outside_of_compiled_code(sizes: list[int], images: ImageSet, tmp_path: Path) -> None:
    """Which does not see that a hook is another one than when it was compiled."""
    encoder = tiny_encoder()
    encoder.run_with(compile=True)
    options: Any = {"batch_size": 12, "shard_rows": 32, "on_error": "record"}
    extract(encoder, images, tmp_path / "compiled", **options, views=2, drop_path=0.5)
    assert len(sizes) == 3 + 3 + 1, "of view 0 alone"


def test_the_first_of_all_features() -> None:
    values = torch.arange(12.0).view(4, 3)
    by_block: Any = {
        "patch": {1: values[:, None]},
        "cls": {1: values},
        "registers": {1: values[:, None]},
        "average": {0: values},
    }
    encoded = Encoded(**by_block, pooled=values, statistics={"a": values[..., None]}, maps={"cls/block1": values[:, :1, None]})
    first = encoded.first(2)
    kept = [*(first.patch | first.cls).values(), *first.registers.values(), *first.average.values(), first.pooled]
    kept += [*first.statistics.values(), *first.maps.values()]
    assert [len(part) for part in kept if part is not None] == [2] * 6
    assert torch.equal(first.cls[1], values[:2])
    assert Encoded().first(2) == Encoded()
