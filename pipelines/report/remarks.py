"""How to read the numbers of probes: what was noted when they were trained, and what their ± leaves out."""

from collections.abc import Iterable

from pipelines.report.content import Text
from pipelines.report.measured import Probe, in_order
from pipelines.report.tables import listed, title


def one_order(probes: Iterable[Probe]) -> str:
    """A sentence for tables with a spread over seeds, where all seeds of a head saw the images in one order; else nothing."""
    several = [probe for probe in probes if len(probe.seeds) > 1]
    shared = [probe for probe in several if probe.recipe.get("order") == "shared"]
    if not shared:
        return ""
    of_which = "" if len(shared) == len(several) else f" of {_heads_and_encoders(shared, several)}"
    return (
        f"All seeds{of_which} saw the images in one order and differ only in where heads start: the ± leaves out what "
        "the order contributes; `--order own` gives each seed its own."
    )


def remarks(probes: Iterable[Probe]) -> list[Text]:
    """The notes of all probes, each once, with the heads and encoders that it concerns."""
    probes = list(probes)
    by_note: dict[str, list[Probe]] = {}
    for probe in probes:
        for note in dict.fromkeys(probe.notes):
            by_note.setdefault(note, []).append(probe)
    items = tuple(f"{_heads_and_encoders(about, probes)}: {note}" for note, about in by_note.items())
    return [Text("Noted when these heads were trained:", items, "notice")] if items else []


def _heads_and_encoders(about: list[Probe], everything: list[Probe]) -> str:
    """`all heads`, or `[cls] and AbMILP on mae; AbMILP on random`: heads with the same encoders are grouped."""
    if len(about) == len(everything):
        return "all heads"
    heads: dict[str, list[str]] = {}
    for probe in about:
        heads.setdefault(probe.head, []).append(probe.encoder)
    groups: dict[tuple[str, ...], list[str]] = {}
    for head in in_order(heads):
        groups.setdefault(tuple(sorted(heads[head])), []).append(head)
    every = tuple(sorted({probe.encoder for probe in everything}))
    return "; ".join(
        listed([title(head) for head in alike]) + ("" if encoders == every else f" on {listed(list(encoders))}")
        for encoders, alike in groups.items()
    )
