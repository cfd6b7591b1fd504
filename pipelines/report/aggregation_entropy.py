"""How evenly an encoder gathers its patches: entropy of the attention of [cls], as in Table 3 (v2)."""

import math

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Table
from pipelines.report.measured import Attention
from pipelines.report.tables import EFFECTIVE, cells, effective, numbers, table

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

    def over_all(one: Attention) -> float | None:
        return limit(one) if _without_cls(inputs, one.encoder) else over_blocks(one)

    def share(one: Attention) -> float | None:
        entropy, highest = over_all(one), limit(one)
        return 100 * entropy / highest if entropy is not None and highest else None

    def name(one: Attention) -> Cell:
        return Cell(one.encoder, one.encoder, tag=UNIFORM if _without_cls(inputs, one.encoder) else "")

    note = (
        "Entropy of the attention of [cls] to the patches, nats, mean over blocks, attention heads and test images; ln T, "
        "the highest there is, for an encoder without [cls], whose patches are averaged. Entropies are compared between "
        f"encoders of equal T only. {EFFECTIVE}"
    )
    return table(
        "aggregation-entropy",
        "How evenly [cls] gathers the patches",
        note,
        [inputs.attention[encoder] for encoder in inputs.encoders if encoder in inputs.attention],
        cells("encoder", "Encoder", name, "text"),
        numbers("entropy", "Entropy", over_all),
        cells("effective_patches", "Effective patches", lambda one: effective(over_all(one))),
        numbers("share", "Share of ln T, %", share, 1),
        numbers("last_block", "Entropy in the last block", last_block, apart=True),
        cells("effective_patches_last_block", "Effective patches there", lambda one: effective(last_block(one))),
        numbers("ln_T", "ln T", limit, apart=True),
        numbers("n_tokens", "T", lambda one: one.n_tokens, 0),
        muted=lambda one: one.encoder in inputs.untrained,
    )


def _without_cls(inputs: Inputs, encoder: str) -> bool:
    """Statistics were computed, but none of [cls], no map of it was kept, and no head reads it."""
    attention = inputs.attention[encoder]
    of_cls = any(name.startswith("cls_") for name in attention.statistics)
    return bool(attention.statistics) and not of_cls and attention.cls_map is None and (encoder, "cls") not in inputs.probes
