"""Colours of classes in label maps and around objects, the same in every picture that is shown together.

Each colour is the one that is furthest, in OKLab, from those before it, from white and from VOID, to the eyes that tell it from
them least: normal ones, and those that lack one kind of cone (Machado et al. 2009). So few classes are as different as can be,
and the more there are, the nearer they get.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Int, UInt8

VOID = (34, 34, 34)  # pixels without a class
COLOURS = (
    *("#0072b2", "#e69f00", "#40c0ff", "#806000", "#204080", "#a0ff80", "#a060ff", "#ff6080"),
    *("#ffc0c0", "#40a0c0", "#8000e0", "#604000", "#a08020", "#a04060", "#c0e000", "#8080e0"),
    *("#00e0ff", "#c020a0", "#802040", "#c0c080", "#c06060", "#8000a0", "#a06080", "#6020c0"),
)


def colours_of(labels: Iterable[int]) -> dict[int, str]:
    """A colour for each of these classes, as #rrggbb: that at its label's place, or the next that none of them has.

    So the colour of a class is always the same in a data set of no more classes than there are colours; where more are shown
    together, colours repeat.
    """
    by_label: dict[int, str] = {}
    for n, label in enumerate(sorted(set(labels))):
        taken = set(list(by_label.values())[n - n % len(COLOURS) :])  # in this round through the colours
        places = (COLOURS[(label + i) % len(COLOURS)] for i in range(len(COLOURS)))
        by_label[label] = next(colour for colour in places if colour not in taken)
    return by_label


def rgb(colour: str) -> tuple[int, int, int]:
    """#rrggbb as numbers, 0…255."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def coloured(label_map: Int[np.ndarray, "H W"], colours: Mapping[int, str]) -> UInt8[np.ndarray, "H W 3"]:
    """A label map as a picture; negative labels are VOID."""
    labels, places = np.unique(label_map, return_inverse=True)
    table = np.array([VOID if label < 0 else rgb(colours[label]) for label in labels.tolist()], np.uint8)
    return table[places.reshape(label_map.shape)]
