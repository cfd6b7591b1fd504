"""Colours of classes in label maps and around objects: by label, so that a class has one colour in every picture.

Each colour is the one that is furthest, in OKLab, from those before it, from white and from VOID, to the eyes that tell it from
them least: normal ones, and those that lack one kind of cone (Machado et al. 2009). So few classes are as different as can be,
and the more there are, the nearer they get.
"""

import numpy as np
from jaxtyping import Int, UInt8

VOID = (34, 34, 34)  # pixels without a class
COLOURS = (
    *("#0072b2", "#e69f00", "#40c0ff", "#806000", "#204080", "#a0ff80", "#a060ff", "#ff6080"),
    *("#ffc0c0", "#40a0c0", "#8000e0", "#604000", "#a08020", "#a04060", "#c0e000", "#8080e0"),
    *("#00e0ff", "#c020a0", "#802040", "#c0c080", "#c06060", "#8000a0", "#a06080", "#6020c0"),
)


def colour(label: int) -> str:
    """Of a class, as #rrggbb; after the last colour they begin again."""
    return COLOURS[label % len(COLOURS)]


def rgb(label: int) -> tuple[int, int, int]:
    """Of a class, 0…255."""
    red, green, blue = bytes.fromhex(colour(label)[1:])
    return red, green, blue


def coloured(label_map: Int[np.ndarray, "H W"]) -> UInt8[np.ndarray, "H W 3"]:
    """A label map as a picture; negative labels are VOID."""
    table = np.array([rgb(label) for label in range(max(0, int(label_map.max(initial=-1))) + 1)] + [VOID], np.uint8)
    return table[np.where(label_map < 0, len(table) - 1, label_map)]
