import numpy as np

from pipelines.predictions.label_maps import OPACITY, draw_label_map
from probe.segmentation.saved_maps import palette

CLASSES = [f"class {label}" for label in range(300)]


def test_pixels_are_tinted_in_the_colours_of_saved_maps():
    picture = np.full((60, 80, 3), 100, np.uint8)
    label_map = np.full((60, 80), -1, np.int16)
    label_map[:30, :40], label_map[30:, :40] = 2, 256
    drawn = draw_label_map(picture, label_map, CLASSES)
    assert (picture == 100).all(), "the picture stays as it is"
    assert (drawn[:, 40:80] == 100).all()
    for rows, label in ((slice(0, 30), 2), (slice(30, 60), 256 % 255)):
        expected = (1 - OPACITY) * 100 + OPACITY * palette()[label].astype(float)
        np.testing.assert_allclose(drawn[rows, :40].astype(float), np.broadcast_to(expected, (30, 40, 3)), atol=1)


def test_classes_that_occur_are_named_beside_the_picture():
    """The largest first, in a square of its full colour; in further columns, where one is too short for all of them."""
    label_map = np.zeros((64, 64), np.int16)
    label_map[40:] = 3
    drawn = draw_label_map(np.zeros((64, 64, 3), np.uint8), label_map, CLASSES)
    legend = drawn[:, 64:]
    colours = [[tuple(pixel) for pixel in row] for row in legend.tolist()]
    first, second = (next(i for i, row in enumerate(colours) if tuple(palette()[k].tolist()) in row) for k in (0, 3))
    assert first < second
    assert not any(tuple(palette()[1].tolist()) in row for row in colours)
    for i in range(12):
        label_map[i] = i
    many = draw_label_map(np.zeros((64, 64, 3), np.uint8), label_map, CLASSES)
    assert many.shape[0] == 64
    seen = {tuple(pixel) for row in many[:, 64:].tolist() for pixel in row}
    assert {tuple(palette()[k].tolist()) for k in range(12)} <= seen
