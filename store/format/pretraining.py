"""How an encoder was trained: its feature sets record it, and results measured on them carry it to the report."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# The report compares encoders by these. iBOT does the first two, and is where the paper puts it (appendix C.1, v2); DINOv2 and
# DINOv3, which do both too and are in none of its tables, have no family.
MASKED, JOINT, LABELS = "masked image modelling", "joint embedding", "labels"
UNTRAINED = "untrained"  # what a user declares of random weights that come from a file
FAMILIES = (MASKED, JOINT, LABELS, UNTRAINED)


@dataclass(frozen=True)
class Pretraining:
    """Attributes of a feature set, and fields of the JSON that is computed from it, by the same names.

    Attributes:
        family: one of FAMILIES; empty where several apply, or it is not known.
        random_seed: from which the weights were drawn; None where they were not drawn, or the seed is not known.
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
    def from_dict(cls, values: Mapping[str, Any]) -> "Pretraining":
        """From the fields among others.

        Raises:
            KeyError: there are no such fields.
            ValueError: they hold something else.
        """
        family, seed = values["family"], values["random_seed"]
        if not isinstance(family, str) or not (seed is None or type(seed) is int):
            raise ValueError(f"family is {family!r} and random_seed {seed!r}, expected a text and a whole number or null")
        return cls(family, seed)


UNKNOWN = Pretraining()
NAMES = tuple(UNKNOWN.to_dict())


def pretraining_fields(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A feature set's fields of this kind, for the JSON of results computed from it; of a set without them, `UNKNOWN`'s."""
    return {name: attributes.get(name, unknown) for name, unknown in UNKNOWN.to_dict().items()}
