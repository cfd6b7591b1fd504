import numpy as np

from probe.localisation import candidates, largest_box


def drawn(*rectangles, size=20):
    """A black picture with rectangles x0, y0, x1, y1 (corners belong to them), each of a value."""
    image = np.zeros((size, size), np.uint8)
    for x0, y0, x1, y1, value in rectangles:
        image[y0 : y1 + 1, x0 : x1 + 1] = value
    return image


def boxes_at(image, level):
    found = candidates(image)
    ends = [*found.starts[1:], len(found.boxes)]
    part = found.of_level[level]
    assert largest_box(image, level) == tuple(found.boxes[found.largest[part]])  # by itself, without the others
    return sorted(found.boxes[found.starts[part] : ends[part]].tolist()), found.boxes[found.largest[part]].tolist()


def test_a_rectangle():
    # x1 is x0 + width: one past the last pixel.
    assert boxes_at(drawn((3, 4, 9, 12, 255)), 0) == ([[3, 4, 10, 13]], [3, 4, 10, 13])
    assert boxes_at(drawn((3, 4, 9, 12, 255)), 254) == ([[3, 4, 10, 13]], [3, 4, 10, 13])


def test_a_box_ends_at_the_last_pixel_of_the_map():
    assert boxes_at(drawn((10, 12, 19, 19, 255)), 100)[0] == [[10, 12, 19, 19]]


def test_the_border_of_a_hole_is_a_contour():
    ring = drawn((2, 2, 16, 16, 255), (5, 5, 12, 12, 0))
    # The inner one runs over bright pixels, around the hole.
    assert boxes_at(ring, 0) == ([[2, 2, 17, 17], [4, 4, 14, 14]], [2, 2, 17, 17])


def test_an_island_in_a_hole_is_a_contour():
    nested = drawn((1, 1, 18, 18, 255), (4, 4, 15, 15, 0), (8, 8, 10, 10, 255))
    assert boxes_at(nested, 0)[0] == [[1, 1, 19, 19], [3, 3, 17, 17], [8, 8, 11, 11]]


def test_diagonal_pixels_belong_together():
    assert boxes_at(drawn((4, 4, 4, 4, 255), (5, 5, 5, 5, 255)), 0)[0] == [[4, 4, 6, 6]]


def test_a_bay_that_is_open_to_the_border_is_no_hole():
    assert boxes_at(drawn((0, 0, 19, 19, 255), (0, 8, 5, 11, 0)), 0)[0] == [[0, 0, 19, 19]]


def test_levels_are_strictly_below_what_is_bright():
    image = drawn((0, 0, 9, 9, 100), (12, 12, 15, 15, 255))
    assert boxes_at(image, 99)[0] == [[0, 0, 10, 10], [12, 12, 16, 16]]
    assert boxes_at(image, 100)[0] == [[12, 12, 16, 16]]


def test_the_largest_contour_is_the_one_that_encloses_most():
    # The thin cross has the larger box, the block the larger area.
    image = drawn((0, 9, 10, 9, 255), (5, 4, 5, 14, 255), (12, 5, 19, 12, 255))
    every, largest = boxes_at(image, 0)
    assert every == [[0, 4, 11, 15], [12, 5, 19, 13]]
    assert largest == [12, 5, 19, 13]


def test_nothing_bright_gives_one_empty_box():
    found = candidates(np.zeros((20, 20), np.uint8))
    assert found.boxes.tolist() == [[0, 0, 0, 0]]
    assert set(found.of_level.tolist()) == {0}
    assert largest_box(np.zeros((20, 20), np.uint8), 0) == (0, 0, 0, 0)
