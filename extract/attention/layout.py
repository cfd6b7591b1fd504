"""Which tokens of a sequence are [cls], registers and patches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenLayout:
    """Prefix tokens come first: [cls] at position 0 if there is one, then registers, then T patches.

    Registers are neither [cls] nor patches: no statistic counts them, and rows are renormalised over patches alone.
    """

    has_cls: bool
    n_prefix: int

    @property
    def n_registers(self) -> int:
        return self.n_prefix - int(self.has_cls)
