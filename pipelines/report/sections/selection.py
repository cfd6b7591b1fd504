"""Choosing patches without training: how far it gets (Table 6, v2), and whether different selections agree (Fig. 7)."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Heading, Section, Table, Text
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.divergences import READING, divergences, heat_maps, table
from pipelines.report.measured import FIRST_HEADS, Measure, Probe, by_accuracy
from pipelines.report.published.printed import printed
from pipelines.report.reading import read
from pipelines.report.remarks import SENTENCE, one_order, score_name
from pipelines.report.studies import selects_untrained
from pipelines.report.tables import EFFECTIVE, Declared, cells, effective, heads, listed, numbers, spreads, texts, title
from pipelines.report.tables import table as declared

STUDY = "selection"
GROUPS = ("for reference", "selected without training", "others")
INTRODUCTION = (
    "Of each image some patches are weighted, without labels: by attention that the encoder, or another one, has computed "
    "anyway, by their place, or by the tokens themselves. Only the classifier on the weighted sum is trained. [cls], the "
    "average of all patches, and AbMILP, whose weights are trained with the classifier, are shown beside it."
)


def section(inputs: Inputs) -> Section | None:
    """Accuracies and entropies, then divergences; None where neither was computed.

    Raises:
        BeyondClsError: a file that is damaged.
    """
    selections, all_divergences = _selections(inputs), divergences(inputs)
    blocks: list[Block] = []
    if selections:
        against = _against(selections)
        blocks += [Text(INTRODUCTION), *_notices(inputs, selections), *([against] if against else [])]
        blocks += [_accuracies(selections), printed("table-6")]
    if all_divergences:
        blocks += [Heading("Whether they choose the same patches"), Text(READING, kind="note")]
        blocks += [*heat_maps(all_divergences), table(all_divergences)]
    return Section("selection", "Choosing patches without training", tuple(blocks)) if blocks else None


def _selections(inputs: Inputs) -> dict[str, dict[str, Probe]]:
    """By encoder and head, in the order of the page; heads of the study win over those for reference of the same name."""
    study = inputs.studies.get(STUDY, {})
    by_encoder: dict[str, dict[str, Probe]] = {}
    for encoder in dict.fromkeys([*inputs.encoders, *sorted({encoder for encoder, _ in study})]):
        if of_study := {head: probe for (name, head), probe in study.items() if name == encoder}:
            shared = {head: inputs.probes[encoder, head] for head in FIRST_HEADS if (encoder, head) in inputs.probes}
            both = shared | of_study
            by_encoder[encoder] = {head: both[head] for head in by_accuracy(both.values())}
    return by_encoder


def _described(probe: Probe) -> str:
    """`norm, top_k 16`."""
    return ", ".join([probe.aggregator, *(f"{name} {value}" for name, value in probe.options.items())])


def _key(file: Path) -> str:
    return str(json.loads(file.read_text(encoding="utf-8"))["key"])


def _against(selections: Mapping[str, Mapping[str, Probe]]) -> Table | None:
    """Each selection without training against AbMILP and the average patch of the same encoder; None without any."""
    contrasts = [
        ((encoder, title(head), title(other)), probe, by_head[other])
        for encoder, by_head in selections.items()
        for other in ("abmilp", "average")
        if other in by_head
        for head, probe in by_head.items()
        if selects_untrained(probe)
    ]
    labels = ("Encoder", "Selected by", "Over")
    return contrasts_table("selection-gains", "Selections without training against AbMILP and the average", labels, contrasts)


def _notices(inputs: Inputs, selections: Mapping[str, Mapping[str, Probe]]) -> list[Text]:
    """What makes a column, or it and the divergences, incomparable."""
    reasons = []
    for encoder, by_head in selections.items():
        if len({tuple(sorted(s.features.items())) for s in by_head.values()}) > 1:
            reasons.append(f"The heads of {encoder} were trained or tested on different feature sets; probe them again.")
        if len({s.trained_as for s in by_head.values()}) > 1:
            reasons.append(f"Not all heads of {encoder} in this section were trained with the same recipe and seeds.")
        summary = inputs.folders.divergence and inputs.folders.divergence / encoder / "summary.json"
        tested = {s.features["test"] for s in by_head.values()}
        if summary and summary.is_file() and read(summary, "beyondcls divergence", _key) not in tested:
            reasons.append(f"The divergences of {encoder} are of another feature set than its probes; compute them again.")
    return [Text(text, kind="notice") for text in reasons]


def _accuracies(selections: Mapping[str, Mapping[str, Probe]]) -> Table:
    """A row for each head, three columns for each encoder."""
    everything = [s for by_head in selections.values() for s in by_head.values()]
    of_head = {head: [by_head[head] for by_head in selections.values() if head in by_head] for head in by_accuracy(everything)}

    def group(head: str) -> str:
        return GROUPS[0] if head in FIRST_HEADS else GROUPS[1 if all(map(selects_untrained, of_head[head])) else 2]

    def of_encoder(encoder: str, key: str) -> list[Declared]:
        def measure(head: str, name: str = "") -> Measure | None:
            probe = selections[encoder].get(head)
            found: Measure | None = None if probe is None else probe.measures.get(name or probe.measure)
            return found

        def nats(head: str) -> float | None:
            entropy = measure(head, "entropy")
            return None if entropy is None else entropy.mean

        return [
            spreads(f"top1_{key}", encoder, measure, best="column", apart=True),
            numbers(f"entropy_{key}", "Entropy", nats),
            cells(f"effective_patches_{key}", "Effective patches", lambda head: effective(nats(head))),
        ]

    counts = sorted({s.n_tokens for s in everything if s.n_tokens})
    uniform = listed([f"ln {n} = {math.log(n):.2f}" for n in counts]) if counts else "ln T"
    note = (
        f"{SENTENCE[score_name(everything)]} on the test images, %, mean ± standard deviation over seeds. "
        f"Entropy: of the weights, nats, mean over images and seeds; 0 is one patch, {uniform} the plain average. {EFFECTIVE} "
        "Bold: the highest mean of an encoder."
    )
    return declared(
        "selection",
        "Accuracy and entropy, as in Table 6 (v2)",
        " ".join(filter(None, (note, one_order(everything)))),
        sorted(of_head, key=lambda head: GROUPS.index(group(head))),
        heads(str),
        texts("aggregator", "Aggregator and options", lambda head: "; ".join(dict.fromkeys(map(_described, of_head[head])))),
        *(of_encoder(encoder, key) for encoder, key in zip(selections, _keys(list(selections)), strict=True)),
        group=group,
    )


def _keys(encoders: list[str]) -> list[str]:
    """Names of columns: letters, digits and underscores, each once."""
    plain = [re.sub(r"\W+", "_", encoder, flags=re.ASCII).strip("_").lower() for encoder in encoders]
    return [key if plain.count(key) == 1 and key else f"{key}_{at}" for at, key in enumerate(plain)]
