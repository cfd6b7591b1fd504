"""How to read the numbers of probes: what was noted when they were trained, and what their ± leaves out."""

from collections.abc import Iterable

from pipelines.report.content import Text
from pipelines.report.measured import Probe, in_order
from pipelines.report.tables import listed, title


def one_order(probes: Iterable[Probe]) -> str:
    """Sentences for tables with a spread over seeds: what all seeds of a head have in common, which the ± leaves out."""
    several = [probe for probe in probes if len(probe.seeds) > 1]
    in_common = {
        "All seeds{} saw the images in one order and differ only in where heads start: the ± leaves out what the order "
        "contributes; `--order own` gives each its own.": [p for p in several if p.recipe.get("order") == "shared"],
        "All seeds{} learned from one draw of the training images: the ± leaves out what the draw contributes; without "
        "`--subset-seed` each has its own.": [p for p in several if isinstance(p.recorded.get("subset", {}).get("seed"), int)],
    }
    return " ".join(
        sentence.format("" if len(these) == len(several) else f" of {_heads_and_encoders(these, several)}")
        for sentence, these in in_common.items()
        if these
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
