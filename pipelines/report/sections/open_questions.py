"""What the paper leaves open (v2, Section D): what was measured here, and how to measure it on your own encoders."""

from collections.abc import Callable, Sequence

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Heading, Section, Text
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.measured import Probe
from pipelines.report.studies import gain_table, selects_untrained, study_table
from pipelines.report.tables import numbers, texts, title

ABOUT = (
    "The paper ends with questions. Those that stored tokens can answer are here; what the numbers say holds for these "
    "encoders and images."
)
FEATURES = "--features features/NAME-train --test features/NAME-test"
COSTS_AS = "Costs as in the section on cost."
NOT_MEASURED = "Not measured here."


def section(inputs: Inputs) -> Section | None:
    """None if none of the questions has a measured answer."""
    blocks: list[Block] = [Text(ABOUT)]
    answers = [answer(inputs) for *_, answer in QUESTIONS]
    for (heading, how, command, _), answered in zip(QUESTIONS, answers, strict=True):
        blocks += [Heading(heading), *(answered or [Text(NOT_MEASURED)])]
        blocks.append(Text(f"On your own encoders: {how}", (command,), "note"))
    return Section("open-questions", "Open questions", tuple(blocks)) if any(answers) else None


def branches(inputs: Inputs) -> list[Block]:
    """Accuracy by the number of score branches; of the study `branches`."""
    study = {key: p for key, p in inputs.studies.get("branches", {}).items() if p.aggregator == "abmilp"}

    def fewest(probes: list[Probe]) -> Probe | None:
        """Where each head has another number of them."""
        return min(probes, key=_n_branches) if len(set(map(_n_branches, probes))) == len(probes) else None

    def more(probe: Probe, one: Probe) -> str:
        return f"{_n_branches(probe)} − {_n_branches(one)}"

    result = gain_table("branches-gains", "What more score branches gain", "Branches", study, fewest, more)
    column = numbers("branches", "Branches", _n_branches, 0)
    return [result, study_table("branches", "Score branches", study, [column], note=COSTS_AS)] if result else []


def depth(inputs: Inputs) -> list[Block]:
    """All variants have a section of their own."""
    known = any(probe.aggregator == "abmilp" for probe in inputs.studies.get("variants", {}).values())
    return [Text("The section “Variants of AbMILP” compares them with one linear layer.")] if known else []


def blocks(inputs: Inputs) -> list[Block]:
    """Which block is read, or several, against the one that is probed; of the study `blocks`."""
    study = inputs.studies.get("blocks", {})
    result = gain_table(
        "blocks-gains",
        "Other blocks against the one that is probed",
        "Blocks",
        study,
        lambda probes: next((p for p in probes if p.aggregator == "abmilp" and not p.options.get("blocks")), None),
        lambda probe, _: f"{title(probe.head)}, {_blocks(probe)}",
        lambda probe: bool(probe.options.get("blocks")),
    )
    column = texts("blocks", "Blocks", _blocks)
    return [result, study_table("blocks", "Blocks", study, [column], note=COSTS_AS)] if result else []


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
    heading = "AbMILP against the average of the feature map"
    return [result] if (result := contrasts_table("feature-maps-gains", heading, ("Encoder",), contrasts)) else []


def _n_branches(probe: Probe) -> int:
    return int(probe.options.get("branches", 1))


def _blocks(probe: Probe) -> str:
    return ", ".join(map(str, probe.options.get("blocks") or ())) or "the probed one"


def _study_command(name: str) -> str:
    return f"beyondcls probe --params params.yaml --study {name}-NAME {FEATURES} --out studies/{name}/NAME"


QUESTIONS: Sequence[tuple[str, str, str, Callable[[Inputs], list[Block]]]] = (
    (
        "Horizontal scaling: how many score branches?",
        "a study in params.yaml whose heads are AbMILP with branches 1, 2, 4, …",
        _study_command("branches"),
        branches,
    ),
    (
        "Vertical scaling: how deep a scoring network?",
        "a study whose heads are AbMILP with different depth and activation.",
        _study_command("variants"),
        depth,
    ),
    (
        "Tokens of which block, or of several?",
        "extract several blocks (extract.blocks in params.yaml); then a study of AbMILP with and without its blocks.",
        _study_command("blocks"),
        blocks,
    ),
    (
        "Can relevant patches be found without labels?",
        "a study whose heads weight patches by something that is not trained, such as cls-attention, and AbMILP.",
        _study_command("selection"),
        selection,
    ),
    (
        "Does it help encoders without attention (ConvNeXt, MLP-Mixer)?",
        "extract one of those that “beyondcls encoders” lists; its feature map takes the place of patch tokens.",
        f"beyondcls probe --head average --head abmilp {FEATURES} --out probes/NAME",
        feature_maps,
    ),
)
