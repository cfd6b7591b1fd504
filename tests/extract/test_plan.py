"""What an extraction is said to cost beforehand."""

import os
import socket
import subprocess
import time
from contextlib import nullcontext

import pytest

from extract.datasets import open_images
from extract.plan import measure, stored_nbytes, total_nbytes
from extract.requests import Request
from extract.run import extract
from store import BeyondClsError
from tests.extract.pictures import samples, write_tar
from tests.extract.tiny import tiny_encoder
from tests.folders import files


def test_bytes_and_files_are_those_of_the_extraction(forty, tmp_path):
    encoder, options = tiny_encoder(), {"views": 2, "dtype": "int8", "shard_rows": 32}
    nbytes, n_files = total_nbytes(Request.resolve(encoder, forty, **options))
    store = extract(encoder, forty, tmp_path / "set", **options)
    content = files(tmp_path / "set").items()
    shards = [len(shard) for name, shard in content if not name.endswith("zarr.json") and not name.startswith("norm/")]
    assert (sum(nbytes.values()), n_files) == (sum(shards), len(shards))
    assert set(nbytes) == {"images", *store.kinds} - {"norm"}
    request = Request.resolve(encoder, forty, dtype="int8")
    stored = stored_nbytes(request)
    assert stored == {layout.name: layout.row_nbytes for layout in request.layouts()}
    assert (stored["patch/block1/view0"], stored["patch/block1/view0-scale"]) == (16 * 32, 16 * 4)


@pytest.mark.parametrize(("seconds", "n_sampled"), [(60, 40), (1e-9, 2)])
def test_the_sample_is_what_the_seconds_allow(forty, tmp_path, seconds, n_sampled):
    began, totals = time.perf_counter(), []

    def bars(_, total, unit):
        totals.append(total)
        return nullcontext(lambda n: None)

    request = Request.resolve(tiny_encoder(), forty, views=2)
    rates = measure(request, tmp_path / "not" / "yet" / "there", seconds=seconds, batch_size=8, bars=bars)
    assert rates.n_sampled == n_sampled == totals[0]
    assert time.perf_counter() - began < 30
    assert min(rates.decoded_per_s, rates.encoded_per_s) >= 2 * rates.images_per_s > 0  # of crops
    assert (rates.read_per_s > 0, rates.device_nbytes) == (True, 0)
    assert list(tmp_path.iterdir()) == []


def test_samples_of_the_killed_are_removed(forty, tmp_path):
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    names = {host: tmp_path / f".plan-{host}-{pid}-x" for host, pid in ((socket.gethostname(), gone.pid), ("other", gone.pid))}
    alive = tmp_path / f".plan-{socket.gethostname()}-{os.getpid()}-x"
    for folder in (*names.values(), alive):
        folder.mkdir()
    measure(Request.resolve(tiny_encoder(), forty), tmp_path / "set", seconds=1e-9)
    assert sorted(tmp_path.iterdir()) == sorted([names["other"], alive])


def test_without_a_readable_image(tmp_path):
    write_tar(tmp_path / "0.tar", samples(2))
    os.truncate(tmp_path / "0.tar", 600)
    with pytest.raises(BeyondClsError, match=r"no readable image to measure with:\n.*0\.tar"):
        measure(Request.resolve(tiny_encoder(), open_images(str(tmp_path))), tmp_path / "set")
