"""Names of arrays: KIND, or KIND/WHAT, then /blockB and /viewV where an array has them, and the suffix -scale for scales."""

import re
from dataclasses import dataclass

SCALE = "-scale"  # suffix of the name of an array's scales
NUMBERED = re.compile(r"(block|view)(0|[1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True)
class ArrayName:
    """The parts of a name: `images/label`, `statistics/cls_self/view0`, `patch/block5/view0`, `patch/block5/view0-scale`.

    Attributes:
        kind: the folder of the set that has the array, one of KINDS in what this program writes.
        what: a statistic, a row of attention, a field of the images; empty for tokens.
        block, view: counted from 0; None where the array belongs to none.
        is_scale: it holds the scales of the array of the same name without SCALE.
    """

    kind: str
    what: str = ""
    block: int | None = None
    view: int | None = None
    is_scale: bool = False

    @classmethod
    def parse(cls, name: str) -> "ArrayName":
        """The parts of any name; `str` joins them again."""
        main = name.removesuffix(SCALE)
        kind, *parts = main.split("/")
        numbers: dict[str, int] = {}
        for word in ("view", "block"):  # from the end
            if parts and (matched := NUMBERED.fullmatch(parts[-1])) and matched[1] == word:
                numbers[word] = int(matched[2])
                parts.pop()
        return cls(kind, "/".join(parts), numbers.get("block"), numbers.get("view"), main != name)

    def __str__(self) -> str:
        block = "" if self.block is None else f"block{self.block}"
        view = "" if self.view is None else f"view{self.view}"
        return "/".join(part for part in (self.kind, self.what, block, view) if part) + SCALE * self.is_scale


def kind_of(name: str) -> str:
    """The first part of a name: the folder of its array."""
    return name.split("/", 1)[0]
