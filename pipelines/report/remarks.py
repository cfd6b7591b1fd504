"""How to read the numbers of probes: what they are, what was noted, what their ± leaves out, and why there are dashes."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipelines.report.content import Text
from pipelines.report.measured import Probe, in_order
from pipelines.report.reading import read
from pipelines.report.tables import listed, title
from probe.result_files import read_result

TITLES = {"top1": "Top-1", "map": "mAP"}
WORDS = {"top1": "top-1 accuracy", "map": "mean average precision"}
SENTENCE = {"top1": "Top-1 accuracy", "map": "Mean average precision"}  # where it begins one
AXES = {"top1": "top-1, %", "map": "mAP, %"}


def score_name(probes: Iterable[Probe]) -> str:
    """What these heads are compared by: "top1" or "map", a key of TITLES; the former if there are none."""
    return next((probe.measure for probe in probes), "top1")


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


def reasons(probes: Mapping[tuple[str, str], Probe], encoders: Iterable[str], heads: Iterable[str]) -> str:
    """Of all dashes: `capi-l14: no cls tokens, which [cls] reads; mae-b16: not probed with AbMILP`.

    Empty if each encoder was probed with each head.
    """
    folder = next((probe.folder.parent.parent for probe in probes.values() if probe.folder is not None), None)
    heads, by_reason = list(heads), dict[str, list[str]]()
    for encoder in encoders:
        for head in heads:
            if (encoder, head) not in probes:
                by_reason.setdefault(_reason(folder, encoder, head), []).append(encoder)
    return "; ".join(f"{', '.join(empty)}: {reason}" for reason, empty in by_reason.items())


def _reason(folder: Path | None, encoder: str, head: str) -> str:
    file = None if folder is None else folder / encoder / head / "metrics.json"
    if file is None or not file.is_file():
        return f"not probed with {title(head)}"
    return f"no {', '.join(read(file, 'beyondcls probe', _absent))} tokens, which {title(head)} reads"


def _absent(file: Path) -> list[str]:
    return [str(kind) for kind in read_result(file)["absent"]]
