"""What the paper leaves open (v2, Section D): what was measured of it here, and how to measure it on your own encoders."""

from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.figure import Figure as Plot

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Column, Definitions, Figure, Figures, Heading, Look, Section, Text
from pipelines.report.drawing import INK, STYLE, colour, drawn, looks
from pipelines.report.measured import Probe, untrained
from pipelines.report.scores import AXES, SENTENCE, TITLES, WORDS, score_name
from pipelines.report.studies import by_encoder, selects_untrained, study_table
from pipelines.report.tables import difference, listed, plus_minus, title, unbroken

COMMAND = "Command"
TRAIN = (
    "beyondcls probe --params params.yaml --study {study} --features features/NAME-train --test features/NAME-test "
    "--out studies/{folder}/NAME"
)
COSTS_AS = "Costs as in the section on cost."
NOT_MEASURED = "Not measured here."


def section(inputs: Inputs) -> Section | None:
    """None if none of the questions has a measured answer."""
    answers = [(question, answer(inputs)) for question, answer in QUESTIONS]
    if not any(answer_blocks for _, answer_blocks in answers):
        return None
    blocks: list[Block] = [
        Text(
            "The paper ends with questions. Those that stored tokens can answer are here; what the numbers say holds for these "
            "encoders and images."
        )
    ]
    for question, answer_blocks in answers:
        heading, how, command = question
        blocks += [Heading(heading), *(answer_blocks or [Text(NOT_MEASURED)])]
        blocks += [Text(f"On your own encoders: {how}", kind="note"), Definitions(((COMMAND, command),), code=(COMMAND,))]
    return Section("open-questions", "Open questions", tuple(blocks))


def branches(inputs: Inputs) -> list[Block]:
    """Accuracy by the number of score branches; of the study `branches`."""
    study = {key: p for key, p in inputs.studies.get("branches", {}).items() if p.aggregator == "abmilp"}
    sentences, drawable = [], {}
    for encoder, probes in by_encoder(study).items():
        probes = sorted(probes, key=_n_branches)
        if len(probes) < 2 or len({_n_branches(p) for p in probes}) < len(probes):
            continue
        drawable[encoder] = probes
        first, last = probes[0], probes[-1]
        best = max(probes, key=lambda p: p.score.mean)
        sentences.append(
            f"On {encoder}, going from {_n_branches(first)} to {_n_branches(last)} score branches changes "
            f"{WORDS[best.measure]} by {_difference(last, first)}; the best number tried is {_n_branches(best)}."
        )
    if not drawable:
        return []
    by_name = looks(list(drawable), untrained(study))
    figures = Figures((_by_branches(drawable, by_name),), tuple(by_name.values()))
    column = (Column("branches", "Branches"), lambda p: Cell(str(_n_branches(p)), _n_branches(p)))
    table = study_table("branches", "Score branches", study, [column], note=COSTS_AS)
    return [Text(" ".join(sentences), kind="finding"), figures, table]


def depth(inputs: Inputs) -> list[Block]:
    """Depth of the scores; the numbers are in the section on variants."""
    sentences = []
    for encoder, probes in by_encoder(inputs.studies.get("variants", {})).items():
        of_depth = {p.options.get("depth", 1): p for p in probes if p.aggregator == "abmilp" and _activation(p) == "relu"}
        deeper = [f"{_difference(of_depth[d], of_depth[1])} with {d}" for d in sorted(of_depth) if d > 1 and 1 in of_depth]
        if deeper:
            score = WORDS[score_name(probes)]
            sentences.append(
                f"On {encoder}, against one linear layer, {score} changes by {listed(deeper)} layers (ReLU between)."
            )
    return (
        [Text(f"{' '.join(sentences)} All variants are in the section “Variants of AbMILP”.", kind="finding")]
        if sentences
        else []
    )


def blocks(inputs: Inputs) -> list[Block]:
    """Which block is read, or several; of the study `blocks`."""
    study = inputs.studies.get("blocks", {})
    sentences = []
    for encoder, probes in by_encoder(study).items():
        last = next((p for p in probes if p.aggregator == "abmilp" and not p.options.get("blocks")), None)
        others = [p for p in probes if p is not last and p.options.get("blocks")]
        if last is not None and others:
            best = max(others, key=lambda p: p.score.mean)
            sentences.append(
                f"On {encoder}, the best other choice of blocks, {_blocks(best).text}, differs by {_difference(best, last)} "
                "from AbMILP on the block that is probed."
            )
    if not sentences:
        return []
    columns = [(Column("blocks", "Blocks", "text"), _blocks)]
    return [Text(" ".join(sentences), kind="finding"), study_table("blocks", "Blocks", study, columns, note=COSTS_AS)]


def selection(inputs: Inputs) -> list[Block]:
    """Weights that nothing was trained for, against AbMILP; of the study `selection`, whose details are in another section."""
    sentences = []
    for encoder, probes in by_encoder(inputs.studies.get("selection", {})).items():
        trained = next((p for p in probes if p.aggregator == "abmilp"), None) or inputs.probes.get((encoder, "abmilp"))
        untrained_selections = [p for p in probes if selects_untrained(p)]
        if trained is None or not untrained_selections:
            continue
        best = max(untrained_selections, key=lambda p: p.score.mean)
        alike = "" if trained in probes else " (trained in another way than these)"
        sentences.append(
            f"On {encoder}, the best of {len(untrained_selections)} untrained "
            f"selection{'s' * (len(untrained_selections) > 1)}, {title(best.head)}, differs by "
            f"{_difference(best, trained)} from AbMILP{alike}."
        )
    return [Text(f"{' '.join(sentences)} Details are in the section on selection.", kind="finding")] if sentences else []


def feature_maps(inputs: Inputs) -> list[Block]:
    """AbMILP over the feature maps of encoders that have no attention."""
    without = [name for name, a in inputs.attention.items() if not a.statistics and a.cls_map is None]
    pairs = [(name, inputs.probes.get((name, "abmilp")), inputs.probes.get((name, "average"))) for name in without]
    sentences = [
        f"On {name}, which has no attention, AbMILP differs by {_difference(one, other)} from the average of the feature map."
        for name, one, other in pairs
        if one is not None and other is not None
    ]
    return [Text(" ".join(sentences), kind="finding")] if sentences else []


QUESTIONS: Sequence[tuple[tuple[str, str, str], Callable[[Inputs], list[Block]]]] = (
    (
        (
            "Horizontal scaling: how many score branches?",
            "a study in params.yaml whose heads are AbMILP with branches 1, 2, 4, …",
            TRAIN.format(study="branches-NAME", folder="branches"),
        ),
        branches,
    ),
    (
        (
            "Vertical scaling: how deep a scoring network?",
            "a study whose heads are AbMILP with different depth and activation.",
            TRAIN.format(study="variants-NAME", folder="variants"),
        ),
        depth,
    ),
    (
        (
            "Tokens of which block, or of several?",
            "extract several blocks (extract.blocks in params.yaml); then a study of AbMILP with and without its blocks.",
            TRAIN.format(study="blocks-NAME", folder="blocks"),
        ),
        blocks,
    ),
    (
        (
            "Can relevant patches be found without labels?",
            "a study whose heads weight patches by something that is not trained, such as cls-attention, beside AbMILP.",
            TRAIN.format(study="selection-NAME", folder="selection"),
        ),
        selection,
    ),
    (
        (
            "Does it help encoders without attention (ConvNeXt, MLP-Mixer)?",
            "extract one of those that “beyondcls encoders” lists; its feature map takes the place of patch tokens.",
            "beyondcls probe --head average --head abmilp --features features/NAME-train --test features/NAME-test "
            "--out probes/NAME",
        ),
        feature_maps,
    ),
)


def _by_branches(drawable: dict[str, list[Probe]], by_name: dict[str, Look]) -> Figure:
    measure = score_name(probe for probes in drawable.values() for probe in probes)
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(4.6, 2.6), layout="constrained")
        axes = plot.subplots()
        for encoder, probes in drawable.items():
            look, at = by_name[encoder], [_n_branches(p) for p in probes]
            means, stds = ([getattr(p.score, part) for p in probes] for part in ("mean", "std"))
            axes.errorbar(at, means, stds, color=colour(look), marker=look.marker, linestyle=look.dash)
        numbers = sorted({_n_branches(p) for probes in drawable.values() for p in probes})
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, [str(n) for n in numbers])
        axes.minorticks_off()
        axes.set_xlabel("score branches, logarithmic")
        axes.set_ylabel(AXES[measure])
        axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.6)
    accuracies = " ".join(f"{encoder}: {', '.join(map(_reached, probes))}." for encoder, probes in drawable.items())
    caption = (
        "Bars: ± one standard deviation over seeds. The classifier reads the branches’ vectors side by side, unless their "
        "option combine averages them."
    )
    alt = f"{SENTENCE[measure]} by score branches. {accuracies}"
    return drawn(plot, "branches", f"{TITLES[measure]} by number of score branches", caption, alt, by_name.values())


def _reached(probe: Probe) -> str:
    return f"{plus_minus(probe.score)} % with {_n_branches(probe)}"


def _difference(one: Probe, other: Probe) -> str:
    value = difference(one, other)
    assert value is not None
    return f"{unbroken(value)} points"


def _n_branches(probe: Probe) -> int:
    return int(probe.options.get("branches", 1))


def _activation(probe: Probe) -> str:
    return str(probe.options.get("activation", "relu"))


def _blocks(probe: Probe) -> Cell:
    chosen = probe.options.get("blocks")
    text = ", ".join(map(str, chosen)) if chosen else "the probed one"
    return Cell(text, text)
