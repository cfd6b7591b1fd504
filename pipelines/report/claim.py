"""The paper's claim held against these numbers: masked models keep in their patches what [cls] does not gather."""

from pipelines.report.aggregation_entropy import last_block, limit, over_blocks
from pipelines.report.collect import Attention, Inputs, Measure
from pipelines.report.content import Text
from pipelines.report.families import JOINT, MASKED, family
from pipelines.report.lead import gains, lead
from pipelines.report.tables import listed, unbroken

HOLDS, FAILS = "holds", "does not hold"


def claim(inputs: Inputs) -> list[Text]:
    """Whether AbMILP beats [cls] on masked encoders and not on joint-embedding ones, and whether entropies lie as in Fig. 4."""
    return [*_gains(inputs), *_entropies(inputs)]


def _gains(inputs: Inputs) -> list[Text]:
    groups = gains(inputs.probes)
    known = {name: value for found in groups.values() for name, value in found.items()}
    if not known:
        return []
    text = (
        f"The paper’s claim is that AbMILP beats [cls] on encoders trained by {MASKED} and hardly on those trained by {JOINT} "
        "(its Table 1)."
    )
    items = [f"{kind}: {_listed(found)}" for kind, found in groups.items()]
    if any(len(value.values) < 2 for value in known.values()):
        verdict = "There was one seed, so neither half can be judged"
    else:
        parts = []
        if groups[MASKED]:
            parts.append(
                _judged("The first half", [name for name, value in groups[MASKED].items() if _ahead(value)], groups[MASKED])
            )
        if groups[JOINT]:
            even = [name for name, value in groups[JOINT].items() if not _ahead(value)]
            parts.append(_judged("the second half" if parts else "The second half", even, groups[JOINT]))
        verdict = "; ".join(parts) + " (ahead means by more than twice the spread over seeds)"
    if least := lead(inputs.probes):
        more = "more" if least.points.mean > 0 else "not more"
        verdict += f". AbMILP gains {more} on {MASKED} than on {JOINT}: {least.told()}"
    return [Text(f"{text} {verdict}. AbMILP − [cls], points:", tuple(items), "finding")]


def _listed(found: dict[str, Measure]) -> str:
    return listed([f"{unbroken(value)} on {name}" for name, value in found.items()] or ["no such encoder here"])


def _ahead(value: Measure) -> bool:
    return value.mean > 2 * value.std


def _judged(half: str, good: list[str], found: dict[str, Measure]) -> str:
    bad = [name for name in found if name not in good]
    parts = [f"{verdict} on {listed(names)}" for verdict, names in ((HOLDS, good), (FAILS, bad)) if names]
    return f"{half} {' and '.join(parts)}"


def _entropies(inputs: Inputs) -> list[Text]:
    """Numbers of every encoder; the order is judged among encoders of equal T only."""
    attention = {n: a for n in inputs.encoders if (a := inputs.attention.get(n)) and last_block(a) is not None and limit(a)}
    if not attention:
        return []
    text = (
        f"The paper finds that [cls] of masked models looks at the patches more evenly than [cls] of {JOINT}: MAE lies above "
        "DINO in Fig. 4, and in Table 3 (v2) over all blocks."
    )
    kinds = {name: family(name) for name in attention}
    counts = {a.n_tokens for name, a in attention.items() if kinds[name]}
    if {MASKED, JOINT} - set(kinds.values()):
        return [Text(f"{text} There are not both kinds of encoders here to compare.", kind="finding")]
    if len(counts) > 1:
        verdict = "The encoders here have different numbers of patches, so their entropies are not compared"
    else:
        parts = []
        for where, measure in (("in the last block", last_block), ("over all blocks", over_blocks)):
            values = {kind: [measure(a) or 0.0 for n, a in attention.items() if kinds[n] == kind] for kind in (MASKED, JOINT)}
            above = min(values[MASKED]) > max(values[JOINT])
            parts.append(f"{HOLDS if above else FAILS} {where}")
        verdict = f"Here that {' and '.join(parts)}"
    items = [
        f"{name}: {last_block(a):.2f} in the last block, {over_blocks(a):.2f} over all blocks, of at most {_limit(a)}"
        for name, a in attention.items()
    ]
    return [Text(f"{text} {verdict}. Entropy of the attention of [cls] to the patches, nats:", tuple(items), "finding")]


def _limit(attention: Attention) -> str:
    """`ln T = 4.16` that no line break parts."""
    return f"ln T = {limit(attention):.2f}".replace(" ", "\N{NO-BREAK SPACE}")
