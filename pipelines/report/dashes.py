"""Why a head has no accuracy on an encoder: the dashes of a table."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipelines.report.measured import Probe
from pipelines.report.reading import read
from pipelines.report.tables import title
from probe.result_files import read_result


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
