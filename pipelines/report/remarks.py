"""How to read numbers: what they are called, what was noted of them, and why there are dashes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pipelines.report.content import Text
from pipelines.report.measured import Probe
from pipelines.report.reading import read
from pipelines.report.tables import title
from probe.result_files import read_result

TITLES = {"top1": "Top-1", "map": "mAP"}
WORDS = {"top1": "top-1 accuracy", "map": "mean average precision"}
SENTENCE = {"top1": "Top-1 accuracy", "map": "Mean average precision"}  # where it begins one
AXES = {"top1": "top-1, %", "map": "mAP, %"}
SHARED_ORDER = "all seeds saw the images in one order: the ± leaves out what it contributes; `--order own` gives each its own"
SHARED_DRAW = (
    "all seeds learned from one draw of the training images, which the ± leaves out; without `--subset-seed` each has its own"
)


def score_name(probes: Iterable[Probe]) -> str:
    """What these heads are compared by: "top1" or "map", a key of TITLES; the former if there are none."""
    return next((probe.measure for probe in probes), "top1")


def remarks(probes: Iterable[Probe]) -> list[Text]:
    """What was noted of probes, and what the ± of those with several seeds leaves out; each once, with its heads."""
    noted = [(f"{title(probe.head)} on {probe.encoder}", [*probe.notes, *_common_remarks(probe)]) for probe in probes]
    items = notes_of(noted, len(noted))
    return [Text("Noted when these heads were trained:", items, "notice")] if items else []


def _common_remarks(probe: Probe) -> Iterator[str]:
    if len(probe.seeds) > 1 and probe.recipe.get("order") == "shared":
        yield SHARED_ORDER
    if len(probe.seeds) > 1 and isinstance(probe.recorded.get("subset", {}).get("seed"), int):
        yield SHARED_DRAW


def notes_of(noted: Sequence[tuple[str, Iterable[str]]], n_all: int = 0) -> tuple[str, ...]:
    """Each note once, behind the names that it concerns: `mae, dino: …`; without names if it concerns as many as `n_all`."""
    by_note: dict[str, list[str]] = {}
    for name, notes in noted:
        for note in dict.fromkeys(notes):
            by_note.setdefault(note, []).append(name)
    return tuple(note if len(names) == n_all > 1 else f"{', '.join(names)}: {note}" for note, names in by_note.items())


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
    return f"no {', '.join(read(file, 'beyondcls probe', _absent_kinds))} tokens, which {title(head)} reads"


def _absent_kinds(file: Path) -> list[str]:
    return [str(kind) for kind in read_result(file)["absent"]]
