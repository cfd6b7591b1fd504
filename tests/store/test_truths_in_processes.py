"""Truths that several processes read at once are what one reads, whether files were open before they were forked or not."""

from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from store import FeatureStore
from tests.features import write_features
from tests.forked import CONTEXT
from tests.truths import instances_of, with_truths

N, SIZE = 24, (20, 30)


class Truths(Dataset[Any]):
    """Label map, boxes and masks of each image of a feature set."""

    def __init__(self, store: FeatureStore):
        self.segmentation, self.instances = store.segmentation, store.instances

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> tuple[np.ndarray, ...]:
        objects = self.instances.of(row)
        return self.segmentation.label_map(row), objects.boxes, objects.labels, objects.masks()


@pytest.mark.parametrize(("context", "workers"), [("fork", 2), (CONTEXT, 1)])
def test_workers_of_a_data_loader(tmp_path, context, workers):
    """One kind is a fork of this process, the other is sent what it reads, and opens files itself."""
    generator = np.random.default_rng(0)
    maps = generator.integers(-1, 3, (N, *SIZE)).astype(np.int16)
    masks = generator.random((N, 2, *SIZE)) < 0.3
    objects = [instances_of(of_image, [0, i % 2]) for i, of_image in enumerate(masks)]
    plain = write_features(tmp_path / "plain", N, 4, 4)
    store = with_truths(plain, tmp_path / "set", maps=list(maps), map_classes="abc", instances=objects, instance_classes="xy")
    truths = Truths(FeatureStore.open(store.path))
    truths[0]  # files are open in this process when the others begin
    loader = DataLoader(truths, None, num_workers=workers, multiprocessing_context=context)
    for row, (label_map, boxes, labels, drawn) in enumerate(loader):
        np.testing.assert_array_equal(label_map, maps[row])
        np.testing.assert_array_equal(boxes, [one.box for one in objects[row]])
        np.testing.assert_array_equal(labels, [0, row % 2])
        np.testing.assert_array_equal(drawn, masks[row])
        np.testing.assert_array_equal(truths[row][3], masks[row])
    assert row == N - 1
