"""Keep what a run measured: numbers and tables, without features and heads.

    python -m quickstart.keep . --data cifar10 --out quickstart/results
    python -m quickstart.keep FOLDER --data cifar10-60000 --studies --out quickstart/full
    python -m quickstart.keep FOLDER --data cifar10-60000 --studies --out quickstart/full --encoder quickstart-mae-ft

FOLDER is where `dvc repro` ran: `make repro`, or with quickstart/full/params.yaml. Writes metrics.json and description.json
into OUT/probes/DATA/ENCODER/HEAD and, of AbMILP and the heads that it is compared with, which test images they classify
correctly (trained/correct.npz); OUT/attention/DATA/ENCODER/*; what other stages measured, OUT/geometry/DATA/ENCODER/* and so
on; and OUT/tables.md. Other draws of a random twin's weights,
ENCODER-1, ENCODER-2, …, are kept as further seeds of ENCODER. The report shows quickstart/full/probes beside the quickstart's
own (`other_probes` in params.yaml); `python -m quickstart.readme` writes the figures of README and of docs/results.md
from both.
"""

import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from pipelines.parameters.params import check_name
from pipelines.report import claims
from pipelines.report.attention_statistics import by_block
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Table
from pipelines.report.formats.markdown_table import to_markdown
from pipelines.report.sections import by_block as by_block_section
from pipelines.report.sections import few_shot, geometry
from pipelines.report.sections.accuracy import gains_table, scores
from pipelines.report.sections.leaderboard import leaderboard
from probe.result_files import METRICS, array_of, over_seeds, read_result, write_result
from store import BeyondClsError

MAIN_HEADS = ("cls", "average", "abmilp")
KEPT = ("metrics.json", "description.json", "timing.json")  # of which timing.json is only on the machine that measured it
BY_IMAGE = (*MAIN_HEADS, "cls-average")  # whose trained/correct.npz is kept
DRAW = re.compile(r"(.*-random)-\d+")  # an encoder that is another draw of a twin's weights
ATTENTION = ("summary.json", "statistics.csv", "heads.csv")
OTHERS = ("geometry", "similarity", "norms", "few_shot", "blocks")  # stages of which KEPT is kept


def keep(folder: Path, data: str, out: Path, studies: bool = False, only: str | None = None) -> None:
    """Copy what was measured under `folder` to `out`, in place of what is there.

    Args:
        studies: heads of all studies, too, where they are trained as the main heads are.
        only: one encoder; what is kept of the others stays.

    Raises:
        BeyondClsError: no metrics under `folder`, two of one encoder and head, or a name that could be something else.
    """
    check_name("--data", data)
    check_name("--encoder", only or data)
    encoders = only or "*"
    measured: dict[tuple[str, str], Path] = {}
    of_studies = [f"studies/{data}/*/{encoders}/*"] if studies else []
    for file in _metrics(folder, [f"probes/{data}/{encoders}/*", *of_studies]):
        encoder, head = file.parts[-3:-1]
        if (encoder, head) in measured:
            raise BeyondClsError(
                f"{head} on {encoder} is in {measured[encoder, head]} and in {file}, expected it once; rename one head"
            )
        measured[encoder, head] = file
    if not measured:
        below = f"{folder}/probes/{data}{f'/{only}' if only else ''}"
        raise BeyondClsError(f"there are no metrics under {below}, expected what `dvc repro probe` writes there")
    for old in (out / "probes" / data, out / "attention" / data):
        shutil.rmtree(old / (only or ""), ignore_errors=True)
    for (encoder, head), file in measured.items():
        place = out / "probes" / data / encoder / head
        _copy(file.parent, place)
        if head in BY_IMAGE and (correct := file.parent / "trained" / "correct.npz").is_file():
            (place / "trained").mkdir()
            shutil.copyfile(correct, place / "trained" / "correct.npz")
    _join_draws(out / "probes" / data)
    for statistics in sorted(folder.glob(f"attention/{data}/{encoders}/")):
        if DRAW.fullmatch(statistics.name):
            continue
        place = out / "attention" / data / statistics.name
        place.mkdir(parents=True)
        for name in ATTENTION:
            shutil.copyfile(statistics / name, place / name)
    for result in (result for stage in OTHERS for result in sorted(folder.glob(f"{stage}/{data}/{encoders}/"))):
        place = out / result.relative_to(folder)
        shutil.rmtree(place, ignore_errors=True)
        _copy(result, place)


def _copy(result: Path, place: Path) -> None:
    """Make a folder with those of KEPT that there are in another."""
    place.mkdir(parents=True)
    for name in KEPT:
        if (result / name).is_file():
            shutil.copyfile(result / name, place / name)


def _join_draws(probes: Path) -> None:
    """Make one result of those of a twin and of other draws of its weights: their seeds side by side."""
    by_twin: dict[str, list[Path]] = {}
    for folder in sorted(place for place in probes.iterdir() if place.is_dir()):
        if match := DRAW.fullmatch(folder.name):
            by_twin.setdefault(match[1], []).append(folder)
    for twin, others in by_twin.items():
        for head in sorted(place for place in (probes / twin).iterdir() if place.is_dir()):
            parts = [head, *(draw / head.name for draw in others if (draw / head.name).is_dir())]
            if len(parts) == 1:  # measured on one draw alone
                continue
            results = [read_result(part / METRICS) for part in parts]
            joined = dict(results[0])
            for name, value in joined.items():
                if isinstance(value, dict) and "values" in value:
                    joined[name] = over_seeds([v for result in results for v in result[name]["values"]])
            joined |= {"seeds": [seed for result in results for seed in result["seeds"]], "draws": len(results)}
            joined["notes"] = [f"seeds of {len(results)} draws of the weights", *results[0].get("notes", ())]
            write_result(head / METRICS, joined)
            files = [part / "trained" / "correct.npz" for part in parts]
            if all(file.is_file() for file in files):
                arrays = [
                    {name: array_of(file, "[seeds, images]", name) for name in ("correct", "converged")} for file in files
                ]
                joined_arrays: dict[str, Any] = {name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]}
                np.savez_compressed(files[0], **joined_arrays)
        for folder in others:
            shutil.rmtree(folder)


def _metrics(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted(file for pattern in patterns for file in folder.glob(f"{pattern}/metrics.json"))


def kept(out: Path, data: str) -> Inputs:
    """What `keep` left in `out`."""
    others: dict[str, Any] = {stage: out / stage / data for stage in OTHERS}
    return collect(Folders(out / "probes" / data, out / "attention" / data, **others))


def main_table(inputs: Inputs) -> Table:
    """[cls], average and AbMILP of each encoder."""
    probes = {(encoder, head): probe for (encoder, head), probe in inputs.probes.items() if head in MAIN_HEADS}
    return scores(replace(inputs, probes=probes))


def of_other_stages(inputs: Inputs) -> list[Table]:
    """Tables of what was measured by block, without a head, and with few images."""
    measured = (section.section(inputs) for section in (by_block_section, geometry, few_shot))
    return [block for section in measured if section for block in section.blocks if isinstance(block, Table)]


def tables(inputs: Inputs, data: str) -> str:
    """In Markdown: the paper's claims, accuracies, all heads, attention by block, and what other stages measured."""
    n_training, n_test = (max(getattr(p, n) for p in inputs.probes.values()) for n in ("n_training", "n_test"))
    lines = [f"# Measured on {data}: {n_training:,} training and {n_test:,} test images\n"]
    shown = [claims.table(inputs), main_table(inputs), gains_table(inputs), leaderboard(inputs)]
    shown += [by_block(inputs.attention)] if inputs.attention else []
    shown += of_other_stages(inputs)
    return "\n".join([*lines, *(to_markdown(table) for table in shown if table is not None)]).replace("\N{NO-BREAK SPACE}", " ")


def main(
    folder: Annotated[Path, typer.Argument(help="where `dvc repro` ran")],
    data: Annotated[str, typer.Option(help="name of the data set")],
    out: Annotated[Path, typer.Option(help="folder for metrics and tables.md")],
    studies: Annotated[
        bool, typer.Option("--studies", help="keep heads of studies too, where they are trained as the main heads are")
    ] = False,
    encoder: Annotated[str | None, typer.Option(help="keep this one alone; what is kept of others stays")] = None,
) -> None:
    """Keep metrics, attention statistics and tables of a run."""
    keep(folder, data, out, studies, encoder)
    inputs = kept(out, data)
    (out / "tables.md").write_text(tables(inputs, data), encoding="utf-8")
    print(f"{out / 'tables.md'}: {len(inputs.probes)} probes")


if __name__ == "__main__":
    typer.run(main)
