"""How an encoder was trained: its feature sets say it, and what is measured on them passes it on to the report."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# By these the report compares encoders. iBOT does the first two, and stands where the paper puts it (appendix C.1, v2); DINOv2
# and DINOv3, which do both too and are in none of its tables, are of no family.
MASKED, JOINT, LABELS = "masked image modelling", "joint embedding", "labels"
UNTRAINED = "untrained"  # what a user says of random weights that come from a file
FAMILIES = (MASKED, JOINT, LABELS, UNTRAINED)


@dataclass(frozen=True)
class Pretraining:
    """Attributes of a feature set, and fields of the JSON that is made of it, by the same names.

    Attributes:
        family: one of FAMILIES; empty where it is of several of them, or not known.
        random_seed: from which the weights were drawn; None where they were not, or it is not known from which.
    """

    family: str = ""
    random_seed: int | None = None

    @property
    def is_untrained(self) -> bool:
        """Whether these are random weights, to which trained ones are compared."""
        return self.random_seed is not None or self.family == UNTRAINED

    @property
    def in_words(self) -> str:
        """`joint embedding`, `random weights, seed 0`."""
        if self.random_seed is not None:
            return f"random weights, seed {self.random_seed}"
        return self.family or "not known, or several"

    def to_dict(self) -> dict[str, Any]:
        """As it is written."""
        return asdict(self)

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> "Pretraining | None":
        """What was written down, beside whatever else; None in what is older than these fields.

        Raises:
            ValueError: they hold something else.
        """
        if "family" not in written:
            return None
        family, seed = written["family"], written.get("random_seed")
        if not isinstance(family, str) or not (seed is None or type(seed) is int):
            raise ValueError(f"family is {family!r} and random_seed {seed!r}, expected a text and a whole number or null")
        return cls(family, seed)


UNKNOWN = Pretraining()
NAMES = tuple(UNKNOWN.to_dict())


def passed_on(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """What a feature set says of it, for the JSON of what is made of the set; nothing of an older one."""
    return {name: attributes[name] for name in NAMES if name in attributes}
