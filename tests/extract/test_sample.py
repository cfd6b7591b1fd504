"""A feature set is compared with what the program computes now: changes of meaning are found, other ways to compute are not."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from extract.attention import STATISTICS
from extract.copies import bytes_of
from extract.datasets import ImageSet, open_images
from extract.encoders import Encoded, Encoder
from extract.layouts import as_array, is_annotation, stored_parts
from extract.requests import Request
from extract.sample import AT_LEAST, PER_SHARD, TOLERANCE, check_by_sample, disagreement
from extract.transform import Views
from store import StoreError
from store.codecs import CODECS, SCALE
from tests.extract.extracting import extract
from tests.extract.pictures import picture, samples, write_tar
from tests.extract.tiny import sharpen, tiny_encoder

N = 100
GIVEN: dict[str, Any] = {"blocks": (0, 1), "views": 2, "shard_rows": 32, "on_error": "record"}
Patch = pytest.MonkeyPatch


def encoder_of(seed: int = 0) -> Encoder:
    encoder = tiny_encoder(seed)
    sharpen(encoder.model, 3.0)
    return Encoder("tiny", encoder.model, {})


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    content = samples(N)
    content[7]["png"] = picture(7)[:-40]
    return open_images(str(write_tar(tmp_path_factory.mktemp("tars") / "0.tar", content)))


def request_of(images: ImageSet, encoder: Encoder | None = None, dtype: str = "float16") -> Request:
    encoder = encoder or encoder_of()
    return Request(encoder, images, (0, 1), encoder.statistics, (0, 1), 2, dtype)


@pytest.fixture(scope="module")
def stores(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {dtype: extract(encoder_of(), images, folder / dtype, dtype=dtype, **GIVEN) for dtype in ("float16", "int8", "int4")}


@pytest.fixture
def store(stores):
    return stores["float16"]


# Deliberate changes of the code. Each is made by `change(patch)`, and must be found in the array that it concerns.


def cut_with(**given: Any) -> Callable[[Patch], None]:
    """Other values than those that the description holds."""
    init = Views.__init__
    other = lambda self, config, *others: init(self, {**config, **given}, *others)  # noqa: E731
    return lambda patch: patch.setattr(Views, "__init__", other)


def encoded(change: Callable[[Encoder, Encoded], Encoded]) -> Callable[[Patch], None]:
    """Change what the encoder gives."""
    call = Encoder.__call__
    return lambda patch: patch.setattr(Encoder, "__call__", lambda self, *given: change(self, call(self, *given)))


def tokens(change: Callable[[Tensor], Tensor]) -> Callable[[Patch], None]:
    return encoded(lambda _, out: replace(out, patch={block: change(values) for block, values in out.patch.items()}))


def scaled(patch: Patch) -> None:
    before = STATISTICS["cls_self"]
    patch.setitem(STATISTICS, "cls_self", lambda attention: before(attention) * 1.001)


def one_shard_is_black(patch: Patch) -> None:
    image = ImageSet.image
    patch.setattr(ImageSet, "image", lambda self, row, held=None: image(self, row).point(lambda v: v * (not 32 <= row < 64)))


CHANGES: dict[str, tuple[Callable[[Patch], None], str]] = {
    "bilinear for bicubic": (cut_with(interpolation="bilinear"), "patch/"),
    "a wider crop": (cut_with(crop_pct=0.95), "patch/|images/crop"),
    "tokens a thousandth larger": (tokens(lambda x: x * 1.001), "patch/"),
    "a statistic a thousandth larger": (scaled, "statistics/cls_self"),
    "random crops of another seed": (lambda patch: patch.setattr("extract.transform.SEED", 1), "images/crop/view1"),
    "another row of the map": (
        encoded(lambda _, o: replace(o, maps={n: x.flip(2) if n.startswith("centre") else x for n, x in o.maps.items()})),
        "attention/centre",
    ),
    "images of one shard black": (one_shard_is_black, "patch/|attention/|statistics/"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_found(name, images, store, monkeypatch):
    change, where = CHANGES[name]
    change(monkeypatch)
    check = check_by_sample(request_of(images), store, batch_size=32)
    assert not check.agrees
    differing = [difference.array for difference in check.worst if difference.ratio > 1]
    assert any(part in array for array in differing for part in where.split("|")), differing


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_changes_are_found_below_coarse_steps(dtype, images, stores, monkeypatch):
    assert check_by_sample(request_of(images, dtype=dtype), stores[dtype]).agrees
    CHANGES["tokens a thousandth larger"][0](monkeypatch)
    check = check_by_sample(request_of(images, dtype=dtype), stores[dtype])
    assert "patch/" in " ".join(difference.array for difference in check.worst if difference.ratio > 1)


# The same, computed otherwise.


def by_definition(patch: Patch) -> None:

    def norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias

    def linear(self: nn.Linear, x: Tensor) -> Tensor:
        n = self.in_features // 2
        return F.linear(x[..., :n], self.weight[:, :n]) + F.linear(x[..., n:], self.weight[:, n:], self.bias)

    patch.setattr(nn.GELU, "forward", lambda self, x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))
    patch.setattr(nn.LayerNorm, "forward", norm)
    patch.setattr(nn.Linear, "forward", linear)
    patch.setattr("extract.encoders.encoder.FastLinear", nullcontext)


def test_other_ways_to_compute_are_not_refused(images, store, monkeypatch):
    by_definition(monkeypatch)
    check = check_by_sample(request_of(images), store, batch_size=1)
    assert check.agrees, check.described


def test_few_images_of_every_shard(images, store, monkeypatch):
    seen = []
    before = ImageSet.image
    monkeypatch.setattr(ImageSet, "image", lambda self, row, held=None: (seen.append(row), before(self, row))[1])
    check = check_by_sample(request_of(images), store)
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) == check.n_sampled
    assert all(sum(row // 32 == shard for row in seen) >= PER_SHARD for shard in range(4))
    assert AT_LEAST <= len(seen) <= AT_LEAST + 4 * PER_SHARD
    assert 7 not in seen, "it is not valid"


def test_what_is_said(images, store, tmp_path, monkeypatch):
    scaled(monkeypatch)
    message = r"in 2 of \d+ arrays, most in statistics/cls_self/view\d: image '\d{4}' has 0\.\d+ .* gives 0\.\d+ .*--recompute"
    with pytest.raises(StoreError, match=message):
        extract(encoder_of(), images, store.path, **GIVEN)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda out: replace(out, **{k: {b: x[..., :30] for b, x in getattr(out, k).items()} for k in ("patch", "cls")}),
            "patch/block0/view0: it is [100, 16, 32] float16, the program now gives [100, 16, 30] float16",
        ),
        (lambda out: replace(out, cls={}), "cls/block0/view0: it is there, the program now gives no such array"),
    ],
)
def test_arrays_of_another_shape_or_name(change, said, images, store, monkeypatch):
    encoded(lambda _, out: change(out))(monkeypatch)
    assert str(check_by_sample(request_of(images), store).worst[0]) == said


def test_as_plain_values(images, store):
    described = check_by_sample(request_of(images), store).to_dict()
    assert (described["n_images"], described["tolerance"]) == (N, 5e-5)
    features = {name for name in store.arrays if not name.startswith("norm") and not is_annotation(name)}
    assert {entry["array"] for entry in described["arrays"]} == features
    ratios = [entry["ratio"] for entry in described["arrays"]]
    assert ratios == sorted(ratios, reverse=True)


class TestDisagreement:
    """Of what two processes have stored of one unit."""

    NAME, IDS = "patch/block0/view0", [str(i) for i in range(70)]  # more than are compared at once

    def stored(self, values: Tensor, request: Request) -> dict[str, np.ndarray]:
        parts = stored_parts({self.NAME: values}, [self.NAME, self.NAME + SCALE], request.dtype)
        return {
            name + end: as_array(bytes_of(part), name, end, request.dtype) for (name, end), part in parts if end is not None
        }

    def differ(self, request: Request, ours: Tensor, theirs: Tensor) -> bool:
        """Both ways; others are compared in the arrays whose bytes differ."""
        one, other = self.stored(ours, request), self.stored(theirs, request)
        found = []
        for first, second in ((one, other), (other, one)):
            differing = {name: first[name] for name in first if first[name].tobytes() != second[name].tobytes()}
            assert differing
            found.append(disagreement(request, self.IDS, differing, {**second, "images/label": np.arange(70)}))
        assert (found[0] is None) == (found[1] is None)
        return found[0] is not None

    @pytest.mark.parametrize("dtype", CODECS)
    def test_rounding_and_more(self, dtype, images):
        """Bytes that rounding by the codec has made of values that almost agree; and one value of one image that does not."""
        request = request_of(images, dtype=dtype)
        values = torch.randn(70, 9, 128, generator=torch.Generator().manual_seed(0))
        noise = 1 + 1e-5 * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))
        assert not self.differ(request, values, values * noise)
        changed = values.clone()
        changed[66, 3, 5] += 2 * values.abs().max()
        assert self.differ(request, values, changed)
        assert self.differ(request, values, 1.3 * values)

    @pytest.mark.parametrize("compute", TOLERANCE)
    def test_the_tolerance_is_that_of_the_arithmetic(self, compute, images, monkeypatch):
        monkeypatch.setattr(Request, "spec", replace(request_of(images).spec, compute_dtype=compute))
        request = request_of(images, dtype="float32")
        values = torch.randn(70, 9, 128, generator=torch.Generator().manual_seed(0))
        assert not self.differ(request, values, values * (1 + 0.9 * TOLERANCE[compute]))
        assert self.differ(request, values, values * (1 + 1.2 * TOLERANCE[compute]))

    def test_integers_are_equal(self, images):
        theirs = {"images/size": np.full((70, 2), 10**6, np.int32)}
        ours = {"images/size": np.full((70, 2), 10**6, np.int32), "images/label": np.arange(70)}
        assert disagreement(request_of(images), self.IDS, theirs, ours) is None
        ours["images/size"][69, 1] += 1
        difference = disagreement(request_of(images), self.IDS, theirs, ours)
        assert "images/size" in difference
