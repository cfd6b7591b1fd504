"""Which tokens of a sequence are [cls], registers and patches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLayout:
    """Prefix tokens come first: [cls] at position 0 if there is one, then registers, then T patches.

    `grid`: rows and columns of patches; None where they are as many, or not known.

    Registers are neither [cls] nor patches: no statistic counts them, and rows are renormalised over patches alone.
    """

    has_cls: bool
    n_prefix: int
    grid: tuple[int, int] | None = None

    @property
    def n_registers(self) -> int:
        return self.n_prefix - int(self.has_cls)
