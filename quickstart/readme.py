"""The figures of README and of docs/results.md, from the kept metrics.

    python -m quickstart.readme

Rewrites what is between `<!-- generated: NAME -->` and `<!-- end of NAME -->` on these pages, and tables.md beside the kept
metrics. Verdicts and words follow the numbers.
"""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipelines.report import claims
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Table
from pipelines.report.estimate import difference
from pipelines.report.formats.markdown_table import to_markdown
from pipelines.report.gains import gains
from pipelines.report.measured import with_converged
from pipelines.report.sections import views
from pipelines.report.tables import plus_minus, points, signed, title
from probe.result_files import REACHED
from quickstart import statements
from quickstart.accuracy import LABELLED
from quickstart.keep import kept, of_other_stages, tables
from quickstart.statements import FINE_TUNED, MAE, MOCO
from store import BeyondClsError

KEPT = {"quickstart/results": "cifar10", "quickstart/full": "cifar10-60000"}  # by folder, the data set
RANDOM = "quickstart-random"
CALLED = {MAE: "the MAE", FINE_TUNED: "the fine-tuned MAE", MOCO: "MoCo v3", RANDOM: "the random twin"}
ROWS = {  # with what else is to be said of them
    MAE: "masked autoencoding (MAE{})",
    FINE_TUNED: "the same, fine-tuned on labels through [cls]{}",
    MOCO: "contrast (MoCo v3{})",
    RANDOM: "random twin{}",
}
HEADS = {"cls": "[cls]", "average": "average patch", "cls-average": "[cls] and average", "abmilp": "AbMILP"}
ON_TWIN = {"central": "the four central patches alone, %", "abmilp": "AbMILP, %"}
OTHER_TABLES = ("geometry", "similarity", "few-shot")
SHIFTED = "quickstart/full/shifted/scores.md"  # as `beyondcls report` writes it
WIDTH = 128
# Blocks by the page that shows them.
PAGES = {
    "README.md": ("accuracy on the quickstart", "accuracy on all images"),
    "docs/results.md": (
        "gains on the quickstart",
        "gains on all images",
        "other measures on all images",
        "by block on all images",
        "heads on corrupted images",
        "as in the paper",
        "to keep in mind",
        "views to buy",
    ),
}


def blocks(root: Path) -> dict[str, str]:
    """The text between the markers, by name.

    Args:
        root: of the source tree.
    """
    small, full = (kept(root / folder, data) for folder, data in KEPT.items())
    others = {one.name: one for one in of_other_stages(full)}
    return {
        "accuracy on the quickstart": table(small, trained(root) | draws(small), 1),
        "gains on the quickstart": claimed(small),
        "accuracy on all images": table(full, draws(full), 2),
        "gains on all images": claimed(full),
        "other measures on all images": "\n\n".join(markdown(others[name]) for name in OTHER_TABLES),
        "by block on all images": by_block(others),
        "heads on corrupted images": without_title((root / SHIFTED).read_text(encoding="utf-8")),
        "as in the paper": statements.table(full),
        "to keep in mind": reservations(full, root),
        "views to buy": views_to_buy(root),
    }


def trained(root: Path) -> dict[str, str]:
    """How long each encoder was trained, from its card."""
    cards = {encoder: _card(root, encoder) for encoder in (MAE, MOCO)}
    epochs = {encoder: card["recipe"]["epochs"] for encoder, card in cards.items()}
    return {e: f"{sum(n) if isinstance(n, list) else n} epochs" for e, n in epochs.items()}


def draws(inputs: Inputs) -> dict[str, str]:
    """How many draws of a twin's weights were measured, of twins with several."""
    n_draws = {encoder: probe.recorded.get("draws", 1) for (encoder, _), probe in inputs.probes.items()}
    return {encoder: f"{n} draws of its weights" for encoder, n in n_draws.items() if n > 1}


def _card(root: Path, encoder: str) -> dict:
    name = encoder.removeprefix("quickstart-")
    return json.loads((root / f"quickstart/encoders/{name}.json").read_text(encoding="utf-8"))


def table(inputs: Inputs, notes: Mapping[str, str], digits: int) -> str:
    """A row for each encoder that was probed: accuracies, in brackets those of converged classifiers, and what AbMILP gains.

    Bold: the highest mean of a row.
    """
    encoders = [encoder for encoder in ROWS if inputs.probes_of(encoder)]
    heads = [head for head in HEADS if all((encoder, head) in inputs.probes for encoder in encoders)]
    columns = ["encoder", *(HEADS[head] for head in heads), "AbMILP − [cls]", "of [cls]’s errors"]
    gained, beside = gains(inputs.probes), gains(with_converged(inputs.probes))
    columns += ["both converged"] * bool(beside)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for encoder in encoders:
        measures = [inputs.probes[encoder, head].measures["top1"] for head in heads]
        best = max(round(measure.mean, digits) for measure in measures)
        shown = [(plus_minus(m, digits), round(m.mean, digits) == best) for m in measures]
        gain = gained[encoder, "cls"]
        cells = [f"**{text}**" if bold else text for text, bold in shown]
        for i, head in enumerate(heads):
            if (reached := inputs.probes[encoder, head].measures.get(REACHED)) is not None:
                cells[i] += f" ({reached.mean:.{digits}f})"
        cells.append(_with_bounds(signed(gain.points.mean), gain.points.bounds()))
        cells.append("–" if gain.share is None else _with_bounds(f"{gain.share.mean:.1f} %", gain.share.bounds()))
        if beside:
            both = beside[encoder, "cls"].points if (encoder, "cls") in beside else None
            cells.append("–" if both is None else _with_bounds(signed(both.mean), both.bounds()))
        note = f", {notes[encoder]}" if encoder in notes else ""
        lines.append("| " + " | ".join([ROWS[encoder].format(note), *cells]) + " |")
    return "\n".join(lines)


def _with_bounds(text: str, bounds: str) -> str:
    return text.replace("-", "−") + ("" if bounds == "–" else f" [{bounds}]")


def claimed(inputs: Inputs) -> str:
    """The table of claims, without its title.

    Raises:
        BeyondClsError: nothing can be judged.
    """
    judged = claims.table(inputs)
    if judged is None:
        raise BeyondClsError(
            "no claim can be judged: expected probes of [cls] and AbMILP on masked or joint-embedding encoders"
        )
    return markdown(judged)


def markdown(shown: Table) -> str:
    """A table without its title."""
    return without_title(to_markdown(shown))


def without_title(text: str) -> str:
    """A table in Markdown without its title, its note wrapped."""
    _, _, text = text.replace("\N{NO-BREAK SPACE}", " ").split("\n", 2)
    lines = text.strip().splitlines()
    return "\n".join([*lines[:-1], paragraph(lines[-1])])


def by_block(tables: Mapping[str, Table]) -> str:
    """Accuracy by block, and what goes with the gain of AbMILP from block to block."""
    gains = tables["geometry-gains-by-block"]
    of_abmilp = replace(gains, rows=tuple(row for row in gains.rows if row.cells[0].text == title("abmilp")))
    return "\n\n".join(markdown(one) for one in (tables["by-block"], of_abmilp))


def reservations(inputs: Inputs, root: Path) -> str:
    """Other heads that do as well, and how long the encoders were trained, and on what."""
    apart = {e: difference(inputs.probes[e, "cls-average"], inputs.probes[e, "abmilp"]) for e in CALLED}
    cards = {encoder: _card(root, encoder) for encoder in (MAE, MOCO, FINE_TUNED)}
    classifier = cards[FINE_TUNED]["classifier"]
    rows = [
        ("[cls] and average side by side, with a classifier twice as wide, − AbMILP, points", CALLED[e], points(d), d)
        for e, d in apart.items()
    ]
    rows += [(words, CALLED[RANDOM], plus_minus(inputs.probes[RANDOM, head].score), None) for head, words in ON_TWIN.items()]
    rows += [("training on one or two CPU cores, s", CALLED[e], f"{card['seconds']:,}", None) for e, card in cards.items()]
    of_classifier = {"the test images": "test", f"the first {LABELLED:,} training images": "train"}
    rows += [
        (f"its own classifier on {images}, %", CALLED[FINE_TUNED], f"{classifier[part]:.1f}", None)
        for images, part in of_classifier.items()
    ]
    lines = [f"| {what} | {of} | {_with_bounds(text, d.bounds() if d else '–')} |" for what, of, text, d in rows]
    return "\n".join(["| what | of | |", "|---|---|---|", *lines])


def views_to_buy(root: Path) -> str:
    """Accuracy by how many crops were stored, or with fresh ones."""
    inputs = collect(Folders(root / "quickstart/results/probes/cifar10", studies=(root / "quickstart/studies",)))
    return markdown(views.table(inputs.studies[views.STUDY]))


def paragraph(*sentences: str) -> str:
    """Sentences as wrapped lines; no-break spaces do not break."""
    return _wrapped(" ".join(sentences), "")


def _wrapped(text: str, indent: str) -> str:
    lines = textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def regenerated(page: str, text: str, generated: Mapping[str, str]) -> str:
    """The text of a page with new blocks.

    Raises:
        BeyondClsError: a block without its markers, or markers without a block.
    """
    marked = re.findall(r"<!-- generated: (.*?) -->", text)
    if sorted(marked) != sorted(generated):
        raise BeyondClsError(f"{page} has blocks {marked}, expected each once of {list(generated)}; write their markers")
    for name, content in generated.items():
        text = with_block(page, text, name, content)
    return text


def with_block(page: str, text: str, name: str, content: str) -> str:
    """The text of a page with a new block of this name.

    Raises:
        BeyondClsError: the page has no markers for it.
    """
    begin, end = f"<!-- generated: {name} -->\n", f"\n<!-- end of {name} -->"
    before, opened, rest = text.partition(begin)
    if not opened:
        raise BeyondClsError(f"{page} has no `{begin.strip()}`; write it and `{end.strip()}` on lines of their own")
    _, closed, after = rest.partition(end)
    if not closed:
        raise BeyondClsError(f"{page} has no `{end.strip()}` behind `{begin.strip()}`; write it at the block's end")
    return before + begin + content + end + after


def main(root: Annotated[Path, typer.Argument(help="of the source tree")] = Path()) -> None:
    """Write the figures of the pages, and the tables, from what is kept."""
    for folder, data in KEPT.items():
        (root / folder / "tables.md").write_text(tables(kept(root / folder, data), data), encoding="utf-8")
    generated = blocks(root)
    for page, names in PAGES.items():
        text = (root / page).read_text(encoding="utf-8")
        (root / page).write_text(regenerated(page, text, {name: generated[name] for name in names}), encoding="utf-8")
    print(f"{len(generated)} blocks in {', '.join(PAGES)}; {', '.join(f'{folder}/tables.md' for folder in KEPT)}")


if __name__ == "__main__":
    typer.run(main)
