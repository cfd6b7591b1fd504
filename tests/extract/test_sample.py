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
from PIL import Image
from torch import Tensor, nn

from extract.attention import STATISTICS
from extract.copies import bytes_of
from extract.datasets import ImageSet, open_images
from extract.encoders import Encoded, Encoder
from extract.layouts import as_array, is_annotation, stored_parts
from extract.requests import Request
from extract.sample import AT_LEAST, PER_SHARD, TOLERANCE, check_by_sample, disagreement
from extract.transform import Normalisation, Views
from store import StoreError
from store.codecs import CODECS, SCALE
from tests.extract.extracting import extract
from tests.extract.pictures import picture, samples, write_tar
from tests.extract.tiny import sharpen, tiny_encoder

N = 100
Patch = pytest.MonkeyPatch


def encoder_of(seed: int = 0) -> Encoder:
    encoder = tiny_encoder(seed)
    sharpen(encoder.model, 3.0)
    return Encoder("tiny", encoder.model, {})


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Image 7 cannot be read."""
    content = samples(N)
    content[7]["png"] = picture(7)[:-40]
    return open_images(str(write_tar(tmp_path_factory.mktemp("tars") / "0.tar", content)))


def request_of(images: ImageSet, encoder: Encoder | None = None, dtype: str = "float16") -> Request:
    encoder = encoder or encoder_of()
    return Request(encoder, images, (0, 1), encoder.statistics, (0, 1), 2, dtype)


@pytest.fixture(scope="module")
def stores(images, tmp_path_factory):
    """Of both blocks and two views, by the codec of tokens."""
    folder, of_dtype = tmp_path_factory.mktemp("stores"), {}
    for dtype in ("float16", "int8", "int4"):
        made = extract(
            encoder_of(), images, folder / dtype, blocks=(0, 1), views=2, dtype=dtype, shard_rows=32, on_error="record"
        )
        of_dtype[dtype] = made
    return of_dtype


@pytest.fixture
def store(stores):
    return stores["float16"]


# Deliberate changes of the code. Each is made by `change(patch)`, and must be found in the array that it concerns.


def transform(change: Callable[[Image.Image], Image.Image]) -> Callable[[Patch], None]:
    """Change what the views are cut from."""
    cuts = Views.cuts
    return lambda patch: patch.setattr(Views, "cuts", lambda self, image, *which: cuts(self, change(image), *which))


def views(**config: Any) -> Callable[[Patch], None]:
    """Cut with other values than those that the description holds."""
    init = Views.__init__
    return lambda patch: patch.setattr(Views, "__init__", lambda self, given, cut: init(self, {**given, **config}, cut))


def normalised(**constants: Any) -> Callable[[Patch], None]:
    """Normalise with other constants than those that the description holds."""
    init = Normalisation.__init__
    return lambda patch: patch.setattr(
        Normalisation, "__init__", lambda self, mean, std: init(self, **{"mean": mean, "std": std, **constants})
    )


def encoded(change: Callable[[Encoder, Encoded], Encoded]) -> Callable[[Patch], None]:
    """Change what the encoder gives."""
    call = Encoder.__call__
    return lambda patch: patch.setattr(Encoder, "__call__", lambda self, *given: change(self, call(self, *given)))


def tokens(change: Callable[[Tensor], Tensor]) -> Callable[[Patch], None]:
    return encoded(lambda _, out: replace(out, patch={block: change(values) for block, values in out.patch.items()}))


def scaled(name: str, factor: float) -> Callable[[Patch], None]:
    before = STATISTICS[name]
    return lambda patch: patch.setitem(STATISTICS, name, lambda attention: before(attention) * factor)


def normed(encoder: Encoder, out: Encoded) -> Encoded:
    norm = encoder.model.norm
    return replace(out, patch={block: norm(values) + 0.01 for block, values in out.patch.items()})


def through_bfloat16(patch: Patch) -> None:
    before = stored_parts

    def rounded(features: dict[str, torch.Tensor], *about: Any) -> Any:
        return before({name: values.bfloat16().float() for name, values in features.items()}, *about)

    patch.setattr("extract.loop.stored_parts", rounded)


def one_shard_is_black(patch: Patch) -> None:
    before = ImageSet.image

    def image(self: ImageSet, row: int, held: object = None) -> Image.Image:
        decoded = before(self, row)
        return Image.new("RGB", decoded.size) if 32 <= row < 64 else decoded

    patch.setattr(ImageSet, "image", image)


CHANGES: dict[str, tuple[Callable[[Patch], None], str]] = {
    "bilinear for bicubic": (views(interpolation="bilinear"), "patch/"),
    "a wider crop": (views(crop_pct=0.95), "patch/|images/crop"),
    "another deviation": (normalised(std=(0.5, 0.5, 0.501)), "patch/|attention/|statistics/"),
    "blue, green, red": (transform(lambda i: Image.merge("RGB", i.split()[::-1])), "patch/"),
    "behind the final norm": (encoded(normed), "patch/"),
    "grid column by column": (tokens(lambda x: x.unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2)), "patch/"),
    "tokens a thousandth larger": (tokens(lambda x: x * 1.001), "patch/"),
    "average for [cls]": (encoded(lambda _, o: replace(o, cls={b: x.mean(1) for b, x in o.patch.items()})), "cls/"),
    "a statistic a thousandth larger": (scaled("cls_self", 1.001), "statistics/cls_self"),
    "through bfloat16": (through_bfloat16, "patch/|cls/"),
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
@pytest.mark.parametrize("name", ["tokens a thousandth larger", "bilinear for bicubic", "grid column by column"])
def test_changes_are_found_below_coarse_steps(name, dtype, images, stores, monkeypatch):
    assert check_by_sample(request_of(images, dtype=dtype), stores[dtype]).agrees
    CHANGES[name][0](monkeypatch)
    check = check_by_sample(request_of(images, dtype=dtype), stores[dtype])
    assert "patch/" in " ".join(difference.array for difference in check.worst if difference.ratio > 1)


# The same, computed otherwise.


def linear(of: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Callable[[Patch], None]:
    def change(patch: Patch) -> None:
        patch.setattr(nn.Linear, "forward", lambda self, x: of(x, self.weight, self.bias))
        patch.setattr("extract.encoders.encoder.FastLinear", nullcontext)

    return change


def in_float64(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double()).float()


def in_two_halves(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    n = weight.shape[1] // 2
    return F.linear(x[..., :n], weight[:, :n]) + F.linear(x[..., n:], weight[:, n:], bias)


def plain_gelu(patch: Patch) -> None:
    patch.setattr(nn.GELU, "forward", lambda self, x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))


def plain_norm(patch: Patch) -> None:
    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias

    patch.setattr(nn.LayerNorm, "forward", forward)


def all_at_once(patch: Patch) -> None:
    for change in (plain_gelu, plain_norm, linear(in_two_halves)):
        change(patch)


REFACTORINGS = {
    "as it is": lambda patch: None,
    "linear layers in float64": linear(in_float64),
    "gelu, norm and linear layers at once": all_at_once,
}


@pytest.mark.parametrize("batch_size", [1, 32])
@pytest.mark.parametrize("name", REFACTORINGS)
def test_other_ways_to_compute_are_not_refused(name, batch_size, images, store, monkeypatch):
    REFACTORINGS[name](monkeypatch)
    check = check_by_sample(request_of(images), store, batch_size=batch_size)
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
    """The worst difference, where it is, and what to do."""
    scaled("cls_self", 1.001)(monkeypatch)
    message = (
        rf"{store.path} is not what the program computes now: a sample of \d+ of its 100 images differs in 2 of \d+ arrays, "
        r"most in statistics/cls_self/view\d: image '\d{4}' has 0\.\d+ (at \[\d, \d\]|on average \(absolute values\)), the "
        r"program now gives 0\.\d+ \(\S+ apart, \S+ allowed\)\. If the change is meant, extract it again: "
        "--recompute, or recompute: true under that encoder in the parameter file; else undo the change"
    )
    before = {file: file.stat().st_mtime_ns for file in store.path.rglob("*")}
    options = {"blocks": (0, 1), "views": 2, "shard_rows": 32, "on_error": "record"}
    with pytest.raises(StoreError, match=message):
        extract(encoder_of(), images, store.path, **options)
    assert {file: file.stat().st_mtime_ns for file in store.path.rglob("*")} == before


def narrowed(out: Encoded, width: int) -> Encoded:
    """Tokens with fewer channels."""
    kinds = {kind: {b: x[..., :width] for b, x in getattr(out, kind).items()} for kind in ("patch", "cls", "registers")}
    return replace(out, **kinds)


def test_arrays_of_another_shape_or_name(images, store, monkeypatch):
    encoded(lambda _, o: narrowed(o, 30))(monkeypatch)
    worst = check_by_sample(request_of(images), store).worst[0]
    assert str(worst) == "patch/block0/view0: it is [100, 16, 32] float16, the program now gives [100, 16, 30] float16"
    monkeypatch.undo()
    encoded(lambda _, o: replace(o, cls={}))(monkeypatch)
    worst = check_by_sample(request_of(images), store).worst[0]
    assert str(worst) == "cls/block0/view0: it is there, the program now gives no such array"


def test_as_plain_values(images, store):
    check = check_by_sample(request_of(images), store)
    described = check.to_dict()
    assert described["n_images"] == N
    assert described["tolerance"] == 5e-5
    features = {name for name in store.arrays if not name.startswith("norm") and not is_annotation(name)}
    assert {entry["array"] for entry in described["arrays"]} == features
    assert [entry["ratio"] for entry in described["arrays"]] == sorted((e["ratio"] for e in described["arrays"]), reverse=True)


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
        theirs = {"images/size": np.full((70, 2), 500, np.int32)}
        ours = {"images/size": np.full((70, 2), 500, np.int32), "images/label": np.arange(70)}
        assert disagreement(request_of(images), self.IDS, theirs, ours) is None
        ours["images/size"][69, 1] += 1
        difference = disagreement(request_of(images), self.IDS, theirs, ours)
        assert "images/size" in difference
