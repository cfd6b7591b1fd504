"""Seventy images, two of them damaged, and the feature sets of a tiny encoder that they give."""

import shutil
from typing import Any

import pytest

from extract.datasets import open_images
from extract.encoders import Encoder
from store import FeatureStore
from tests.extract.extracting import extract
from tests.extract.pictures import picture, samples, write_tar
from tests.extract.tiny import Counting, tiny_encoder
from tests.folders import files

N = 70  # 32 + 32 + 6 rows
BAD = (7, 45)  # cannot be read
TWO = ("cls_self", "patch_self")
GIVEN: dict[str, Any] = {"shard_rows": 32, "batch_size": 8, "workers": 2, "on_error": "record", "statistics": TWO}


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """40 in the first tar, 30 in the second."""
    folder, content = tmp_path_factory.mktemp("tars"), samples(N)
    for bad in BAD:
        content[bad]["png"] = picture(bad)[:-40]
    write_tar(folder / "0.tar", content[:40])
    write_tar(folder / "1.tar", content[40:])
    return open_images(str(folder))


@pytest.fixture(scope="session")
def forty(tmp_path_factory):
    """Sound ones."""
    return open_images(str(write_tar(tmp_path_factory.mktemp("forty") / "0.tar", samples(40))))


@pytest.fixture
def encoder():
    return Counting("tiny", tiny_encoder().model, {})


@pytest.fixture
def run(encoder, images):
    """extract() with small shards; every argument can be given otherwise."""
    return lambda out, images=images, encoder=encoder, **arguments: extract(encoder, images, out, **{**GIVEN, **arguments})


@pytest.fixture(scope="session")
def _extracted(images, tmp_path_factory):
    """The set of some options, extracted once; not to be changed."""
    folder, folders = tmp_path_factory.mktemp("extracted"), {}
    tiny = Encoder("tiny", tiny_encoder().model, {})

    def extracted(images=images, encoder=tiny, **options):
        key = repr((images.digest, images.classes, encoder.weights, encoder.config, sorted(options.items())))
        if key not in folders:
            folders[key] = folder / str(len(folders))
            extract(encoder, images, folders[key], **{**GIVEN, **options})
        return folders[key]

    return extracted


@pytest.fixture
def make_set(_extracted):
    """A copy of what an extraction with these options gives."""
    return lambda out, **options: FeatureStore.open(shutil.copytree(_extracted(**options), out))


@pytest.fixture
def whole(_extracted):
    """The files of a set that was extracted at once with these options."""
    return lambda **options: files(_extracted(**options))
