"""The images of `workers`, and the set that one process makes of them."""

import pytest

from extract.datasets import ImageSet
from tests.folders import files
from tests.pipelines.engines.workers import extracted, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def whole(images: ImageSet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "f"
    extracted(images, out)
    return files(out)
