"""What this machine gives to all parts of a project."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        device: where encoders and heads compute.
        written_per_s, read_per_s: bytes that its store writes and reads.
        features_nbytes: features that are kept in memory while heads train; larger ones are read in every epoch.
        vectors_nbytes: likewise of vectors that aggregators without parameters have pooled.
    """

    device: str
    written_per_s: float
    read_per_s: float
    features_nbytes: float
    vectors_nbytes: float
