"""What the paper leaves open (v2, Section D): what was measured of it here, and how to measure it on your own encoders."""

from collections.abc import Callable, Iterable, Sequence

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Definitions, Heading, Section, Text
from pipelines.report.contrasts import Contrast
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.measured import Probe
from pipelines.report.studies import by_encoder, selects_untrained, study_table
from pipelines.report.tables import numbers, texts, title

COMMAND = "Command"
TRAIN = (
    "beyondcls probe --params params.yaml --study {study} --features features/NAME-train --test features/NAME-test "
    "--out studies/{folder}/NAME"
)
COSTS_AS = "Costs as in the section on cost."
NOT_MEASURED = "Not measured here."


def section(inputs: Inputs) -> Section | None:
    """None if none of the questions has a measured answer."""
    answers = [(heading, how, command, answer(inputs)) for heading, how, command, answer in QUESTIONS]
    if not any(answer_blocks for *_, answer_blocks in answers):
        return None
    blocks: list[Block] = [
        Text(
            "The paper ends with questions. Those that stored tokens can answer are here; what the numbers say holds for these "
            "encoders and images."
        )
    ]
    for heading, how, command, answer_blocks in answers:
        blocks += [Heading(heading), *(answer_blocks or [Text(NOT_MEASURED)])]
        blocks += [Text(f"On your own encoders: {how}", kind="note"), Definitions(((COMMAND, command),), code=(COMMAND,))]
    return Section("open-questions", "Open questions", tuple(blocks))


def branches(inputs: Inputs) -> list[Block]:
    """Accuracy by the number of score branches; of the study `branches`."""
    study = {key: p for key, p in inputs.studies.get("branches", {}).items() if p.aggregator == "abmilp"}
    by_number = {encoder: sorted(probes, key=_n_branches) for encoder, probes in by_encoder(study).items()}
    drawable = {e: probes for e, probes in by_number.items() if len({_n_branches(p) for p in probes}) == len(probes) > 1}
    if not drawable:
        return []
    contrasts = [
        ((encoder, f"{_n_branches(probe)} − {_n_branches(probes[0])}"), probe, probes[0])
        for encoder, probes in drawable.items()
        for probe in probes[1:]
    ]
    gained = _compared("branches-gains", "What more score branches gain", ("Encoder", "Branches"), contrasts)
    column = numbers("branches", "Branches", _n_branches, 0)
    return [*gained, study_table("branches", "Score branches", study, [column], note=COSTS_AS)]


def depth(inputs: Inputs) -> list[Block]:
    """All variants have a section of their own."""
    known = any(probe.aggregator == "abmilp" for probe in inputs.studies.get("variants", {}).values())
    return [Text("The section “Variants of AbMILP” compares them with one linear layer.")] if known else []


def blocks(inputs: Inputs) -> list[Block]:
    """Which block is read, or several, against the one that is probed; of the study `blocks`."""
    study = inputs.studies.get("blocks", {})
    contrasts = []
    for encoder, probes in by_encoder(study).items():
        last = next((p for p in probes if p.aggregator == "abmilp" and not p.options.get("blocks")), None)
        others = [p for p in probes if p is not last and p.options.get("blocks")]
        contrasts += [((encoder, f"{title(p.head)}, {_blocks(p)}"), p, last) for p in others if last is not None]
    if not contrasts:
        return []
    gained = _compared("blocks-gains", "Other blocks against the one that is probed", ("Encoder", "Blocks"), contrasts)
    return [*gained, study_table("blocks", "Blocks", study, [texts("blocks", "Blocks", _blocks)], note=COSTS_AS)]


def selection(inputs: Inputs) -> list[Block]:
    """Where the answer is: weights that nothing was trained for, against AbMILP, have a section of their own."""
    study = inputs.studies.get("selection", {})
    trained = {encoder for encoder, head in (*inputs.probes, *study) if head == "abmilp"}
    measured = any(selects_untrained(p) and encoder in trained for (encoder, _), p in study.items())
    return [Text("The section “Choosing patches without training” compares them with AbMILP.")] if measured else []


def feature_maps(inputs: Inputs) -> list[Block]:
    """AbMILP over the feature maps of encoders that have no attention, against their average."""
    without = [name for name, a in inputs.attention.items() if not a.statistics and a.cls_map is None]
    pairs = [(name, inputs.probes.get((name, "abmilp")), inputs.probes.get((name, "average"))) for name in without]
    contrasts = [((name,), one, other) for name, one, other in pairs if one is not None and other is not None]
    return _compared("feature-maps-gains", "AbMILP against the average of the feature map", ("Encoder",), contrasts)


def _compared(name: str, heading: str, labels: Sequence[str], contrasts: Iterable[Contrast]) -> list[Block]:
    result = contrasts_table(name, heading, labels, contrasts)
    return [] if result is None else [result]


QUESTIONS: Sequence[tuple[str, str, str, Callable[[Inputs], list[Block]]]] = (
    (
        "Horizontal scaling: how many score branches?",
        "a study in params.yaml whose heads are AbMILP with branches 1, 2, 4, …",
        TRAIN.format(study="branches-NAME", folder="branches"),
        branches,
    ),
    (
        "Vertical scaling: how deep a scoring network?",
        "a study whose heads are AbMILP with different depth and activation.",
        TRAIN.format(study="variants-NAME", folder="variants"),
        depth,
    ),
    (
        "Tokens of which block, or of several?",
        "extract several blocks (extract.blocks in params.yaml); then a study of AbMILP with and without its blocks.",
        TRAIN.format(study="blocks-NAME", folder="blocks"),
        blocks,
    ),
    (
        "Can relevant patches be found without labels?",
        "a study whose heads weight patches by something that is not trained, such as cls-attention, beside AbMILP.",
        TRAIN.format(study="selection-NAME", folder="selection"),
        selection,
    ),
    (
        "Does it help encoders without attention (ConvNeXt, MLP-Mixer)?",
        "extract one of those that “beyondcls encoders” lists; its feature map takes the place of patch tokens.",
        "beyondcls probe --head average --head abmilp --features features/NAME-train --test features/NAME-test "
        "--out probes/NAME",
        feature_maps,
    ),
)


def _n_branches(probe: Probe) -> int:
    return int(probe.options.get("branches", 1))


def _blocks(probe: Probe) -> str:
    chosen = probe.options.get("blocks")
    return ", ".join(map(str, chosen)) if chosen else "the probed one"
