"""Choosing patches without training: how far it gets (Table 6, v2), and whether different selections agree (Fig. 7)."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Cell, Heading, Section, Table, Text, section_of
from pipelines.report.contrasts import table as contrasts_table
from pipelines.report.measured import FIRST_HEADS, Entries, Measure, Probe, by_accuracy, in_order
from pipelines.report.published.printed import printed_table
from pipelines.report.reading import files_in, finite, read, rows_of
from pipelines.report.remarks import SENTENCE, score_name
from pipelines.report.sections.studies import selects_untrained
from pipelines.report.tables import (
    EFFECTIVE,
    NOTHING,
    DeclaredColumn,
    cells,
    each,
    effective,
    encoders,
    file_names,
    heads,
    listed,
    means,
    numbers,
    spreads,
    texts,
    title,
)
from pipelines.report.tables import table as declared

READING = (
    "KL(p || q) in nats between weights, mean over the test images. ∞: infinite for more than half of them, as q gives no "
    "weight to patches that p weights; a star: for some, which are left out."
)
FIGURE = (
    "As Fig. 7 of the paper: KL(p || q) in nats, p in rows and q in columns. ∞: infinite for most images; a star: for some."
)
STUDY = "selection"
GROUPS = ("for reference", "selected without training", "others")
INTRODUCTION = (
    "Some patches of each image are weighted without labels: by attention that an encoder has computed anyway, by their "
    "place, or by the tokens themselves. Only the classifier on the weighted sum is trained."
)


def section(inputs: Inputs) -> Section | None:
    """Accuracies and entropies, then divergences; None where neither was computed."""
    selections, of_encoders = _selections(inputs), divergences(inputs)
    blocks: list[Block | None] = []
    if selections:
        blocks += [Text(INTRODUCTION), *_notices(inputs, selections), _gain_table(selections)]
        blocks += [_accuracy_table(selections), printed_table("table-6")]
    if of_encoders:
        blocks += [Heading("Whether they choose the same patches"), Text(READING, kind="note")]
        blocks += [*_matrices(of_encoders), _pair_table(of_encoders)]
    return section_of("selection", "Choosing patches without training", *blocks) if blocks else None


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


def _options_of(probe: Probe) -> str:
    """`norm, top_k 16`."""
    return ", ".join([probe.aggregator, *(f"{name} {value}" for name, value in probe.options.items())])


def _option_key(file: Path) -> str:
    return str(json.loads(file.read_text(encoding="utf-8"))["key"])


def _gain_table(selections: Mapping[str, Mapping[str, Probe]]) -> Table | None:
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
        if summary and summary.is_file() and read(summary, "beyondcls divergence", _option_key) not in tested:
            reasons.append(f"The divergences of {encoder} are of another feature set than its probes; compute them again.")
    return [Text(text, kind="notice") for text in reasons]


def _accuracy_table(selections: Mapping[str, Mapping[str, Probe]]) -> Table:
    """A row for each head, three columns for each encoder."""
    everything = [s for by_head in selections.values() for s in by_head.values()]
    of_head = {head: [by_head[head] for by_head in selections.values() if head in by_head] for head in by_accuracy(everything)}

    def group(head: str) -> str:
        return GROUPS[0] if head in FIRST_HEADS else GROUPS[1 if all(map(selects_untrained, of_head[head])) else 2]

    def of_encoder(encoder: str, key: str) -> list[DeclaredColumn]:
        def measure(head: str, name: str = "") -> Measure | None:
            probe = selections[encoder].get(head)
            found: Measure | None = None if probe is None else probe.measures.get(name or probe.measure)
            return found

        def entropy(head: str) -> Measure | None:
            return measure(head, "entropy")

        return [
            spreads(f"top1_{key}", encoder, measure, best="column", apart=True),
            means(f"entropy_{key}", "Entropy", entropy, 2),
            cells(
                f"effective_patches_{key}", "Effective patches", lambda head: effective(getattr(entropy(head), "mean", None))
            ),
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
        note,
        sorted(of_head, key=lambda head: GROUPS.index(group(head))),
        heads(str),
        texts("aggregator", "Aggregator and options", lambda head: "; ".join(dict.fromkeys(map(_options_of, of_head[head])))),
        *(of_encoder(encoder, key) for encoder, key in zip(selections, _column_keys(list(selections)), strict=True)),
        group=group,
    )


def _column_keys(names: list[str]) -> list[str]:
    """Names of columns: letters, digits and underscores, each once."""
    plain = [re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower() for name in names]
    return [key if plain.count(key) == 1 and key else f"{key}_{at}" for at, key in enumerate(plain)]


def divergences(inputs: Inputs) -> dict[str, list[Entries]]:
    """Pairs by encoder, the encoders of the page first: p, q, KL(p || q) in nats (mean, std; None where all are infinite)."""
    files = {file.parent.name: file for file in files_in(inputs.folders.divergence, "*/divergence.csv")}
    known = [encoder for encoder in inputs.encoders if encoder in files]
    order = [*known, *sorted(set(files) - set(known))]
    by_encoder = {encoder: read(files[encoder], "beyondcls divergence", _pairs) for encoder in order}
    return {encoder: pairs for encoder, pairs in by_encoder.items() if pairs}


def _pairs(file: Path) -> list[Entries]:
    return [
        Entries(
            p=row["from"],
            q=row["to"],
            **{name: finite(row[name]) if row[name] else None for name in ("mean", "std")},
            **{name: int(row[name]) for name in ("n_images", "n_infinite")},
        )
        for row in rows_of(file)
    ]


def _divergence_cell(pair: Entries) -> Cell:
    """`0.21`; `∞` where it is infinite for most images, a star where it is for some."""
    if pair.mean is None or 2 * pair.n_infinite > pair.n_images:
        return Cell("∞")
    return Cell(f"{pair.mean:.2f}{'*' * bool(pair.n_infinite)}", pair.mean)


def _matrices(of_encoders: Mapping[str, list[Entries]]) -> Iterator[Table]:
    """As Fig. 7: p in rows, q in columns."""
    files = file_names("divergence", list(of_encoders))
    for encoder, pairs in of_encoders.items():
        names, by_pair = in_order(head for pair in pairs for head in (pair.p, pair.q)), {(o.p, o.q): o for o in pairs}
        keys = dict(zip(names, _column_keys(names), strict=True))

        def of_pair(p: str, q: str, by_pair: Mapping[tuple[str, str], Entries] = by_pair) -> Cell:
            return Cell("0", 0.0) if p == q else _divergence_cell(by_pair[p, q]) if (p, q) in by_pair else NOTHING

        columns = each(names, lambda q: cells(f"to_{keys[q]}", title(q), lambda p: of_pair(p, q)))  # noqa: B023
        yield declared(files[encoder], encoder, FIGURE, names, texts("p", "p", str, title), columns)


def _pair_table(of_encoders: Mapping[str, list[Entries]]) -> Table:
    note = (
        "Mean ± std over the images of which it is finite; it is infinite where q gives no weight to a patch that p weights. "
        "Weights are means over seeds."
    )
    return declared(
        "divergence",
        "Divergence between the weights of heads",
        note,
        [(encoder, pair) for encoder, pairs in of_encoders.items() for pair in pairs],
        encoders(lambda row: row[0]),
        texts("from", "p", lambda row: row[1].p, title),
        texts("to", "q", lambda row: row[1].q, title),
        cells("kl", "KL(p || q), nats", lambda row: _mean_and_std(row[1]), "spread"),
        numbers("n_images", "Images", lambda row: row[1].n_images, 0, apart=True),
        numbers("n_infinite", "Of these infinite", lambda row: row[1].n_infinite, 0),
        folded=True,
    )


def _mean_and_std(pair: Entries) -> Cell:
    known = pair.mean is not None and pair.std is not None
    return Cell(f"{pair.mean:.3f} ± {pair.std:.3f}", pair.mean, pair.std) if known else Cell("∞")
