"""Keep what a run over all of CIFAR-10 measured: numbers and tables; features and heads stay behind.

    python -m pipelines.quickstart.full_size FOLDER --out quickstart/full

FOLDER is where `dvc repro` ran with quickstart/full/params.yaml. Writes OUT/probes/DATA/ENCODER/HEAD/metrics.json,
OUT/attention/DATA/ENCODER/*, and OUT/tables.md. The report shows OUT/probes beside the quickstart's own (`other_probes` in
params.yaml).
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipelines.report.block_statistics import by_block
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Table
from pipelines.report.formats.markdown_table import to_markdown
from pipelines.report.lead import lead
from pipelines.report.sections.accuracy import top1
from pipelines.report.sections.datasets import by_head
from store import BeyondClsError

DATA = "cifar10-60000"
MAIN_HEADS = ("cls", "average", "abmilp")
ATTENTION = ("summary.json", "statistics.csv", "heads.csv")


def keep(folder: Path, out: Path) -> None:
    """Copy what was measured under `folder` to `out`, in place of what is there.

    Raises: BeyondClsError: no metrics there, or two of one encoder and head.
    """
    found: dict[tuple[str, str], Path] = {}
    for file in sorted([*folder.glob(f"probes/{DATA}/*/*/metrics.json"), *folder.glob("studies/*/*/*/metrics.json")]):
        encoder, head = file.parts[-3:-1]
        if (encoder, head) in found:
            raise BeyondClsError(
                f"{head} on {encoder} is in {found[encoder, head]} and in {file}, expected it once; rename one head"
            )
        found[encoder, head] = file
    if not found:
        raise BeyondClsError(f"there are no metrics under {folder}/probes/{DATA}, expected what `dvc repro probe` writes there")
    for old in (out / "probes", out / "attention"):
        shutil.rmtree(old, ignore_errors=True)
    for (encoder, head), file in found.items():
        place = out / "probes" / DATA / encoder / head
        place.mkdir(parents=True)
        for name in ("metrics.json", "timing.json"):  # the latter lies on the machine that measured it alone
            if (file.parent / name).is_file():
                shutil.copyfile(file.parent / name, place / name)
    for measured in sorted(folder.glob(f"attention/{DATA}/*/")):
        place = out / "attention" / DATA / measured.name
        place.mkdir(parents=True)
        for name in ATTENTION:
            shutil.copyfile(measured / name, place / name)


def kept(out: Path) -> Inputs:
    """What `keep` left in `out`."""
    return collect(Folders(out / "probes" / DATA, out / "attention" / DATA))


def main_table(inputs: Inputs) -> Table:
    """[cls], average and AbMILP of each encoder."""
    probes = {(encoder, head): probe for (encoder, head), probe in inputs.probes.items() if head in MAIN_HEADS}
    return top1(replace(inputs, probes=probes))


def tables(inputs: Inputs) -> str:
    """In Markdown: accuracies, how much more AbMILP gains on the masked encoder, all heads, attention statistics by block."""
    found = lead(inputs.probes)
    said = f"AbMILP gains over \\[cls\\] {found.told()}.\n".replace("\N{NO-BREAK SPACE}", " ") if found else ""
    shown = [main_table(inputs), by_head(DATA, inputs.probes), by_block(inputs.attention)]
    return "\n".join(["# Measured on all 60,000 images of CIFAR-10\n", said, *map(to_markdown, shown)])


def main(
    folder: Annotated[Path, typer.Argument(help="where `dvc repro` ran with quickstart/full/params.yaml")],
    out: Annotated[Path, typer.Option(help="folder for metrics and tables.md")] = Path("quickstart/full"),
) -> None:
    """Keep metrics, attention statistics and tables of a run over all of CIFAR-10."""
    keep(folder, out)
    inputs = kept(out)
    (out / "tables.md").write_text(tables(inputs), encoding="utf-8")
    print(f"{out / 'tables.md'}: {len(inputs.probes)} probes")


if __name__ == "__main__":
    typer.run(main)
