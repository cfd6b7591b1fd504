"""Colours of classes can be told apart, also by those who lack one kind of cone."""

import numpy as np
import pytest

from pipelines.report.class_colours import COLOURS, VOID, coloured, colours_of, rgb

# What remains of linear sRGB without long, middle and short cones (Machado et al. 2009, severity 1).
EYES = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colours: np.ndarray, eyes: str) -> np.ndarray:
    """CIELAB of colours, 0…255, as these eyes see them."""
    share = colours / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = (linear @ np.array(EYES[eyes]).T).clip(0, 1) @ TO_XYZ.T / TO_XYZ.sum(1)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize(("n", "least"), [(8, 17), (len(COLOURS), 6)])
def test_any_two_differ(eyes: str, n: int, least: float) -> None:
    """2.3 is just noticeable; the first are further apart."""
    seen = lab(np.array([*map(rgb, COLOURS[:n]), VOID], float), eyes)
    apart = np.sqrt(((seen[:, None] - seen) ** 2).sum(-1)) + 1000 * np.eye(n + 1)
    assert apart.min() > least


def test_a_class_has_one_colour_and_no_other_class_has_it() -> None:
    n = len(COLOURS)
    assert colours_of(range(n)) == dict(enumerate(COLOURS))
    assert colours_of([n + 1, 1, 2, n - 1]) == {1: COLOURS[1], 2: COLOURS[2], n - 1: COLOURS[-1], n + 1: COLOURS[3]}
    many = colours_of(range(2 * n))
    assert sorted(many.values()) == sorted(2 * COLOURS), "colours repeat where there are more classes"
    assert len({many[label] for label in range(n)}) == n


def test_label_maps_are_coloured() -> None:
    picture = coloured(np.array([[0, 1], [-1, 0]]), {0: "#0072b2", 1: "#e69f00"})
    assert picture.tolist() == [[[0, 0x72, 0xB2], [0xE6, 0x9F, 0]], [list(VOID), [0, 0x72, 0xB2]]]
    assert coloured(np.array([[-1]]), {}).tolist() == [[list(VOID)]]
