"""Which blocks and attention statistics of an encoder are kept, and which truths of its images."""

from collections.abc import Sequence

from extract.attention import PER_BLOCK, STATISTICS, facts_of
from extract.datasets import ImageSet
from extract.encoders import Encoder
from store import BeyondClsError
from store.errors import unknown

TRUTHS = ("segmentation", "instances")
VECTORS = ("kept", "all", "only")  # [cls] of the blocks whose tokens are kept; vectors of all blocks beside; in place of tokens


def known_statistics(names: Sequence[str] | None) -> Sequence[str]:
    """Names of attention statistics that some encoder can have.

    Raises:
        BeyondClsError: an unknown name, or a single name instead of a list.
    """
    if isinstance(names, str):
        raise BeyondClsError(f"statistics is {names!r}, expected a list, e.g. [{names}]; leave it out for all, [] is none")
    for name in names or ():
        if name not in (known := [*STATISTICS, *PER_BLOCK]):
            raise BeyondClsError(unknown("attention statistic", name, known))
    return names or ()


def possible_statistics(encoder: Encoder, names: Sequence[str] | None) -> Sequence[str] | None:
    """The names that this encoder can have, of a list that is meant for several encoders; None stands for all.

    Raises:
        BeyondClsError: an unknown name.
    """
    return None if names is None else [name for name in known_statistics(names) if encoder.can_have(name)]


def checked_statistics(encoder: Encoder, names: Sequence[str] | None) -> tuple[str, ...]:
    """Names of attention statistics; by default all of this program that the encoder can have."""
    for name in known_statistics(names):
        if not encoder.can_have(name):
            lacks = "[cls] token" if encoder.attends else "attention"
            if encoder.attends and (encoder.layout.has_cls or not facts_of(name).of_cls):
                lacks = "module that gives what attention adds"
            can = ", ".join(encoder.statistics) or "none"
            raise BeyondClsError(f"{encoder.name} has no {lacks}, so no {name}; it can have: {can}")
    # Always in the encoder's order: equal sets have equal keys.
    return encoder.statistics if names is None else tuple(name for name in (*STATISTICS, *PER_BLOCK) if name in names)


def kept_blocks(blocks: Sequence[int], vectors: str, n_blocks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Blocks whose tokens are kept, and those whose [cls] and average patch are: none ("kept"), all, or the former ("only").

    Raises:
        BeyondClsError: another word, or an unknown block.
    """
    if vectors not in VECTORS:
        raise BeyondClsError(unknown("value of vectors", vectors, VECTORS))
    chosen = checked_blocks(blocks, n_blocks)
    if vectors == "only":
        return (), chosen
    return chosen, tuple(range(n_blocks)) if vectors == "all" else ()


def checked_blocks(blocks: Sequence[int], n_blocks: int) -> tuple[int, ...]:
    """Counted from 0, ascending, without repeats."""
    for block in blocks:
        if not -n_blocks <= block < n_blocks:
            raise BeyondClsError(
                f"there is no block {block}: the encoder has blocks 0 to {n_blocks - 1} (negative ones count from the end)"
            )
    if not blocks:
        raise BeyondClsError("no block was asked for; give at least one, e.g. --blocks -1 for the last")
    return tuple(sorted({block % n_blocks for block in blocks}))


def chosen_truths(images: ImageSet, truths: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the truths to keep, in a fixed order.

    Args:
        truths: names; "all" that the data set has, "none"; by default what is usual for its form.

    Raises:
        BeyondClsError: an unknown name, or the data set has no such truths.
    """
    if truths is None:
        return tuple(name for name in TRUTHS if name in images.usual_truths)
    if truths in ("all", "none"):
        return tuple(name for name in TRUTHS if truths == "all" and name in images.truths)
    chosen = truths.split(",") if isinstance(truths, str) else truths
    for name in chosen:
        if name not in TRUTHS:
            raise BeyondClsError(unknown("kind of truths", name, (*TRUTHS, "all", "none")))
        if name not in images.truths:
            has = f"it has {', '.join(images.truths)}" if images.truths else "it has none"
            raise BeyondClsError(
                f"{images.source} has no {name} ({has}); leave out --truths {name}, or name a form of data set that has it "
                "with --form"
            )
    return tuple(name for name in TRUTHS if name in chosen)
