"""The report's folder: the page, each table and plot as files, and the accuracies for `dvc metrics`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Figures, Gallery, Section, Table
from pipelines.report.dense import KINDS, learnt, miou, resolutions
from pipelines.report.formats import FORMATS
from pipelines.report.galleries.pictures import files_of
from pipelines.report.measured import Measure
from pipelines.report.page import render
from pipelines.report.results import FILE, to_csv
from store import BeyondClsError
from store.writing.results import ResultFolder

PAGE = "index.html"
Part = TypeVar("Part", Table, Figure, Gallery)


def write(out: Path | ResultFolder, inputs: Inputs, sections: Sequence[Section], reload_s: float | None = None) -> None:
    """index.html, metrics.json, tables/results.csv (every head), tables/NAME.csv, .tex, .md, figures/NAME.svg, .png, .pdf.

    Pictures of galleries are figures/GALLERY-ROW-COLUMN.png.

    Files of an earlier run are removed: those that its page links to.

    Args:
        out: where they go; a `place_of` that was made earlier shows whether another report has come meanwhile.
        reload_s: seconds after which the page loads itself again; never by default.

    Raises:
        StoreError: another report has come there since.
        BeyondClsError: as `place_of`.
    """
    place = place_of(out) if isinstance(out, Path) else out
    with place.written() as folder:
        _write(folder, inputs, sections, reload_s)


def place_of(out: Path) -> ResultFolder:
    """The folder of a report, for the next one.

    Raises:
        BeyondClsError: the page there is of something else.
    """
    page = out / PAGE
    if page.is_file() and b"beyondcls" not in page.read_bytes():
        raise BeyondClsError(f"{page} is no report, so it is not replaced; give another --out, or move it away first")
    return ResultFolder(out, PAGE, lambda: _linked_files(page))


def _linked_files(page: Path) -> list[Path]:
    """Tables and figures to which the page of an earlier run links."""
    text = page.read_text(encoding="utf-8", errors="replace") if page.is_file() else ""
    return [page.parent / link for link in re.findall(r'href="((?:tables|figures)/[\w.-]+)"', text)]


def _write(out: Path, inputs: Inputs, sections: Sequence[Section], reload_s: float | None) -> None:
    for folder in ("tables", "figures"):
        (out / folder).mkdir()
    for table in parts(sections, Table):
        for suffix, to_text in FORMATS.items():
            _write_text(out / "tables" / f"{table.name}.{suffix}", to_text(table))
    for figure in parts(sections, Figure):
        for suffix, drawn in figure.files.items():
            (out / "figures" / f"{figure.name}.{suffix}").write_bytes(drawn())
    for gallery in parts(sections, Gallery):
        for pictures, names in zip(gallery.rows, files_of(gallery), strict=True):
            for picture, name in zip(pictures, names, strict=True):
                Image.fromarray(picture.pixels).save(out / "figures" / f"{name}.png")
    _write_text(out / "tables" / FILE, to_csv(inputs))
    _write_text(out / "metrics.json", json.dumps(metrics(inputs), indent=1) + "\n")
    _write_text(out / PAGE, render(sections, reload_s))


def write_page(place: ResultFolder, sections: Sequence[Section]) -> None:
    """index.html alone, in one step, as a browser may load it meanwhile.

    Raises:
        StoreError: as `write`.
    """
    with place.written(is_whole=False) as folder:
        _write_text(folder / PAGE, render(sections))


def parts(sections: Sequence[Section], kind: type[Part]) -> list[Part]:
    """All tables, figures or galleries, in the order of the page."""
    blocks: list[Any] = [block for section in sections for block in section.blocks]
    blocks += [figure for block in blocks if isinstance(block, Figures) for figure in block.figures]
    found = [block for block in blocks if isinstance(block, kind)]
    names = [part.name for part in found]
    assert len(names) == len(set(names)), f"two of the same name would be one file: {sorted(names)}"
    return found


def metrics(inputs: Inputs) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation over seeds, percent, by encoder: top-1 accuracy or mAP of each head; of dense tasks below.

    mIoU by `segmentation/DATASET/PROTOCOL`, AP of boxes and masks by `detection/DATASET/box` and `/mask`.
    """
    by_encoder: dict[str, dict[str, dict[str, float]]] = {}
    for encoder in inputs.encoders:
        for probe in inputs.probes_of(encoder):
            by_encoder.setdefault(encoder, {})[probe.head] = {probe.measure: probe.score.mean, "std": probe.score.std}
    for encoder, name, measures in _dense_measures(inputs):
        known = {measure: value for measure, value in measures.items() if value is not None}
        if known:
            means = {measure: value.mean for measure, value in known.items()}
            by_encoder.setdefault(encoder, {})[name] = means | {"std": next(iter(known.values())).std}
    return by_encoder


def _dense_measures(inputs: Inputs) -> Iterator[tuple[str, str, Mapping[str, Measure | None]]]:
    """Encoder, task and measures of segmentation and detection; the first measure is the one whose spread is given."""
    for dataset, of_encoders in inputs.segmentation.items():
        for name, one in of_encoders.items():
            for protocol in learnt([one]):
                mious = {f"miou_{at}": miou(one, protocol, at) for at in resolutions([one])}
                yield name, f"segmentation/{dataset}/{protocol}", mious
    for dataset, of_encoders in inputs.detection.items():
        for name, one in of_encoders.items():
            for kind in (kind for kind in KINDS if kind in one):
                yield name, f"detection/{dataset}/{kind}", {"ap": one[kind].ap, "ap50": one[kind].ap50}


def _write_text(file: Path, content: str) -> None:
    file.write_text(content, encoding="utf-8", errors="backslashreplace", newline="\n")  # names of files need not be UTF-8
