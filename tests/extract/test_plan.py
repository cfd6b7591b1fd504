"""What an extraction is said to cost beforehand."""

import pytest

from extract.datasets import open_images
from extract.plan import Plan, plan, rates, stored_nbytes
from extract.requests import Request
from extract.run import extract
from pipelines.plan import described, seconds_in_words
from store import BeyondClsError
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder


def of(**changed: object) -> Plan:
    values = {"n_images": 1000, "n_views": 1, "nbytes": {"patch": 6 * 10**9, "cls": 10**6}, "n_shards": 12}
    rates = {"n_sampled": 64, "images_per_s": 10.0, "decoded_per_s": 50.0, "encoded_per_s": 20.0, "read_per_s": 1000.0}
    return Plan(**{**values, **rates, **changed})


def test_pays_after():
    # 100 s of extraction; 50 s an epoch with the encoder, 1 s without.
    assert of().pays_after == pytest.approx(100 / 49)
    # The time lines meet there.
    epochs = of().pays_after
    assert of().seconds + epochs * of().seconds_with_cache == pytest.approx(epochs * of().seconds_without_cache)


def test_decoding_may_be_what_an_epoch_waits_for():
    assert of(decoded_per_s=5.0).seconds_without_cache == 200


def test_reading_may_be_slower_than_the_encoder():
    slow = of(read_per_s=10.0)
    assert slow.pays_after is None
    assert "never" in described(slow, 10**12, 1, 90, 9)[-1]


def test_bytes_and_files_are_those_of_the_extraction(forty, tmp_path):
    encoder, options = tiny_encoder(), {"views": 2, "dtype": "int8", "shard_rows": 32}
    planned = plan(Request.resolve(encoder, forty, **options), tmp_path / "set")
    assert not list(tmp_path.iterdir())  # the sample is gone
    store = extract(encoder, forty, tmp_path / "set", **options)
    shards = [file for file in (tmp_path / "set").rglob("*") if file.is_file() and file.name != "zarr.json"]
    shards = [file for file in shards if "norm" not in file.relative_to(tmp_path / "set").parts]
    assert sum(planned.nbytes.values()) == sum(file.stat().st_size for file in shards)
    assert planned.n_shards == len(shards)
    assert set(planned.nbytes) == {"images", *store.kinds} - {"norm"}
    assert (planned.n_images, planned.n_views) == (40, 2)


def test_rates_are_measured(forty, tmp_path):
    planned = plan(Request.resolve(tiny_encoder(), forty), tmp_path / "not" / "yet" / "there", batch_size=8)
    assert planned.n_sampled == 32
    assert min(planned.images_per_s, planned.decoded_per_s, planned.encoded_per_s, planned.read_per_s) > 0
    # Decoding, encoding and more: an extraction cannot be faster than the encoder alone, noise aside.
    assert planned.images_per_s < 2 * planned.encoded_per_s
    assert planned.seconds == 40 / planned.images_per_s


def test_rates_of_a_sample(forty, tmp_path):
    request = Request.resolve(tiny_encoder(), forty, views=3)
    measured = rates(request, tmp_path / "set", n_sampled=12)
    assert measured.n_sampled == 12
    assert min(measured.decoded_per_s, measured.encoded_per_s) >= measured.computed_per_s > 0
    assert rates(request, tmp_path / "set", n_sampled=12, seconds=1e-9).n_sampled == 2  # a slow encoder
    assert not list(tmp_path.iterdir())
    assert plan(request, tmp_path / "set", n_sampled=6).n_sampled == 6


def test_stored_bytes_are_those_of_a_row(forty):
    request = Request.resolve(tiny_encoder(), forty, dtype="int8")
    layouts = {layout.name: layout.row_nbytes for layout in request.layouts()}
    assert stored_nbytes(request) == layouts
    wide = stored_nbytes(request, "float16")
    assert wide["patch/block1/view0"] == 2 * layouts["patch/block1/view0"] == 2 * 16 * 32
    assert layouts["patch/block1/view0-scale"] == 16 * 4
    assert "patch/block1/view0-scale" not in wide


def test_without_a_readable_image(tmp_path):
    write_tar(tmp_path / "0.tar", samples(2))
    whole = (tmp_path / "0.tar").read_bytes()
    (tmp_path / "0.tar").write_bytes(whole[:600])
    with pytest.raises(BeyondClsError, match=r"no readable image to measure with:\n.*0\.tar"):
        plan(Request.resolve(tiny_encoder(), open_images(str(tmp_path))), tmp_path / "set")


def test_what_is_said():
    lines = "\n".join(described(of(n_views=2), 5 * 10**9, 4, 90, 9))
    assert "1,000, 2 views each" in lines
    assert "6 GB in 12 files (patch 6 GB)" in lines
    assert "1 GB too much" in lines
    assert "--dtype int8" in lines
    assert "25 s with 4 tasks" in lines
    assert "after 2.0 epochs of one head; 9 heads of 90 epochs take 11 hours" in lines
    assert "too much" not in "\n".join(described(of(), 7 * 10**9, 1, 90, 9))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25 s"), (5, "5 s"), (99, "99 s"), (100, "1.7 min"), (5000, "83 min"), (7200, "2 hours"), (3e5, "3 days")],
)
def test_seconds_in_words(seconds, words):
    assert seconds_in_words(seconds) == words
