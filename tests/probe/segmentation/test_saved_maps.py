"""Predicted label maps as PNGs."""

import numpy as np
import pytest
from PIL import Image

from probe.segmentation.saved_maps import palette, save_label_map


@pytest.mark.parametrize(("n_classes", "mode", "unseen"), [(3, "P", 255), (255, "P", 255), (256, "I;16", 65535)])
def test_label_maps(tmp_path, n_classes, mode, unseen):
    """Of 255 classes the last is 254, so that 255 is free for what a view does not show."""
    save_label_map(tmp_path / "deep/a.png", np.array([[0, -1], [n_classes - 1, 1]], np.int16), n_classes)
    with Image.open(tmp_path / "deep/a.png") as image:
        assert image.mode == mode
        assert np.asarray(image).tolist() == [[0, unseen], [n_classes - 1, 1]]
        if mode == "P":
            assert np.asarray(image.convert("RGB"))[0].tolist() == [[128] * 3, [0] * 3], "grey, and black where nothing is seen"


def test_colours_differ():
    colours = palette()
    assert len(np.unique(colours[1:], axis=0)) == 255
    near = np.abs(colours[1:20, None].astype(int) - colours[None, 1:20]).sum(-1) + 999 * np.eye(19, dtype=int)
    assert near.min() >= 64
