"""How evenly an encoder gathers its patches: entropy of the attention of [cls], as in Table 3 (v2)."""

import math

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Row, Table
from pipelines.report.measured import Attention
from pipelines.report.tables import EFFECTIVE, NOTHING, effective, number

ENTROPY = "cls_patch_entropy"
UNIFORM = "no [cls]: uniform"


def over_blocks(attention: Attention) -> float | None:
    """Entropy of the attention of [cls] to the patches, mean over blocks, heads and images, nats; None if not computed."""
    values = attention.statistics.get(ENTROPY)
    return sum(mean for mean, _ in values) / len(values) if values else None


def last_block(attention: Attention) -> float | None:
    """The same of the last block alone."""
    values = attention.statistics.get(ENTROPY)
    return values[-1][0] if values else None


def limit(attention: Attention) -> float | None:
    """ln T, nats."""
    return math.log(attention.n_tokens) if attention.n_tokens else None


def measured(inputs: Inputs) -> Table:
    """A row for each encoder with attention statistics; ln T for one without [cls], as its patches are averaged."""
    columns = (
        Column("encoder", "Encoder", "text"),
        Column("entropy", "Entropy"),
        Column("effective_patches", "Effective patches"),
        Column("share", "Share of ln T, %"),
        Column("last_block", "Entropy in the last block", apart=True),
        Column("effective_patches_last_block", "Effective patches there"),
        Column("ln_T", "ln T", apart=True),
        Column("n_tokens", "T"),
    )
    rows = []
    for encoder in inputs.encoders:
        if (attention := inputs.attention.get(encoder)) is None:
            continue
        highest, uniform = limit(attention), _without_cls(inputs, encoder)
        entropy = highest if uniform else over_blocks(attention)
        share = number(100 * entropy / highest, 1) if entropy is not None and highest else NOTHING
        name = Cell(encoder, encoder, tag=UNIFORM if uniform else "")
        last = last_block(attention)
        over_all = (number(entropy), effective(entropy), share)
        cells = (name, *over_all, number(last), effective(last), number(highest), number(attention.n_tokens, 0))
        rows.append(Row(cells, muted=encoder in inputs.untrained))
    note = (
        "Entropy of the attention of [cls] to the patches, nats, mean over blocks, attention heads and test images; ln T, "
        "the highest there is, for an encoder without [cls], whose patches are averaged. Entropies are compared between "
        f"encoders of equal T only. {EFFECTIVE}"
    )
    return Table("aggregation-entropy", "How evenly [cls] gathers the patches", note, columns, tuple(rows))


def _without_cls(inputs: Inputs, encoder: str) -> bool:
    """Statistics were computed, but none of [cls], no map of it was kept, and no head reads it."""
    attention = inputs.attention[encoder]
    of_cls = any(name.startswith("cls_") for name in attention.statistics)
    return bool(attention.statistics) and not of_cls and attention.cls_map is None and (encoder, "cls") not in inputs.probes
