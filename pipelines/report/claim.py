"""The paper's claim beside these numbers: masked models keep in their patches what [cls] does not gather."""

from collections.abc import Mapping

from pipelines.report.aggregation_entropy import last_block, limit, over_blocks
from pipelines.report.collect import Inputs
from pipelines.report.content import Text
from pipelines.report.gains import basis
from pipelines.report.lead import Lead, headline, lead, verdicts
from pipelines.report.measured import Attention
from store.format.pretraining import JOINT, MASKED

HOLDS, FAILS = "holds", "does not hold"
CLAIM, EVENNESS = "The claim, with all its numbers", "How evenly [cls] looks at the patches"  # summaries


def lead_on_page(inputs: Inputs) -> Lead | None:
    """The lead among the encoders on this page, with the untrained twin of the masked one."""
    leading = lead(inputs.probes)
    return leading and lead(inputs.probes, inputs.twin(leading.masked))


def claim(inputs: Inputs) -> list[Text]:
    """Whether AbMILP beats [cls] on masked encoders and not on joint-embedding ones, and the entropies of Fig. 4."""
    return [*_gains(inputs), *_entropies(inputs)]


def _gains(inputs: Inputs) -> list[Text]:
    """The claim in numbers, and what of it holds; nothing without encoders of both families."""
    leading = lead_on_page(inputs)
    if leading is None:
        return []
    items = [f"{verdict}: {'; '.join(statements)}" for verdict, statements in verdicts(leading).items()]
    return [Text(f"{headline(leading)} {' '.join(basis(inputs.probes))}", tuple(items), "finding", CLAIM)]


def _entropies(inputs: Inputs) -> list[Text]:
    """Numbers of every encoder; the order is judged among encoders of equal T only."""
    attention = _with_entropies(inputs)
    if not attention:
        return []
    text = (
        f"The paper finds that [cls] of masked models looks at the patches more evenly than [cls] of {JOINT}: MAE is above "
        "DINO in Fig. 4, and in Table 3 (v2) over all blocks."
    )
    kinds, counts = _compared(attention), {attention[name].n_tokens for name in _compared(attention)}
    if {MASKED, JOINT} - set(kinds.values()):
        return [
            Text(f"{text} The encoders here are not of both kinds, so there is nothing to compare.", (), "finding", EVENNESS)
        ]
    if len(counts) > 1:
        verdict = "The encoders here have different numbers of patches, so their entropies are not compared"
    else:
        parts = [f"{HOLDS if above else FAILS} {where}" for where, above in evenness(inputs).items()]
        verdict = f"Here that {' and '.join(parts)}"
    items = [
        f"{name}: {last_block(a):.2f} in the last block, {over_blocks(a):.2f} over all blocks, of at most {_limit(a)}"
        for name, a in attention.items()
    ]
    return [
        Text(f"{text} {verdict}. Entropy of the attention of [cls] to the patches, nats:", tuple(items), "finding", EVENNESS)
    ]


def evenness(inputs: Inputs) -> dict[str, bool]:
    """Whether [cls] of every masked encoder looks more evenly than that of every joint-embedding one, by where.

    Empty where there are not both, or where their numbers of patches differ.
    """
    attention = _with_entropies(inputs)
    kinds = _compared(attention)
    if {MASKED, JOINT} - set(kinds.values()) or len({attention[name].n_tokens for name in kinds}) > 1:
        return {}
    above = {}
    for where, measure in (("in the last block", last_block), ("over all blocks", over_blocks)):
        values = {kind: [measure(attention[n]) or 0.0 for n in kinds if kinds[n] == kind] for kind in (MASKED, JOINT)}
        above[where] = min(values[MASKED]) > max(values[JOINT])
    return above


def _with_entropies(inputs: Inputs) -> dict[str, Attention]:
    return {n: a for n in inputs.encoders if (a := inputs.attention.get(n)) and last_block(a) is not None and limit(a)}


def _compared(attention: Mapping[str, Attention]) -> dict[str, str]:
    """The family of encoders that are of one of the two which the paper compares."""
    return {name: kind for name, a in attention.items() if (kind := a.pretraining.family) in (MASKED, JOINT)}


def _limit(attention: Attention) -> str:
    """`ln T = 4.16`, with no-break spaces."""
    return f"ln T = {limit(attention):.2f}".replace(" ", "\N{NO-BREAK SPACE}")
