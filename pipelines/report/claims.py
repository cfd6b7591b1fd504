"""The paper's claims, each with what was measured here and whether that decides: holds, contradicted, not shown."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipelines.report.attention_statistics import ENTROPY, last_block, limit, over_blocks
from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Table
from pipelines.report.estimate import Estimate, Probes, Variation, mean_over_encoders
from pipelines.report.gains import Gain, basis, gains
from pipelines.report.measured import AttentionResult, untrained_encoders, with_converged
from pipelines.report.tables import NOTHING, DeclaredColumn, cells, each, interval, texts
from pipelines.report.tables import table as declared
from store.format.pretraining import JOINT, LABELS, MASKED

MARGIN = 1.0  # points up to which a gain counts as none
AHEAD = "AbMILP is ahead of [cls] on masked encoders"
NO_MORE = {
    JOINT: f"It gains no more than {MARGIN:g} point over [cls] on joint-embedding encoders",
    LABELS: f"It gains no more than {MARGIN:g} point over [cls] on encoders that saw labels",
}
MORE = {
    JOINT: "It gains more on masked than on joint-embedding encoders",
    LABELS: "It gains more on masked encoders than on those that saw labels",
}
BEYOND = "It gains more on masked encoders than on untrained twins"
EVEN = {
    "last block": "[cls] of masked encoders looks at the patches more evenly, in the last block",
    "all blocks": "[cls] of masked encoders looks at the patches more evenly, over all blocks",
}
POINTS, SHARE, NATS = "points", "% of the errors", "nats"
UNITS = {POINTS: "points", SHARE: "share", NATS: "nats"}  # and columns in CSV
State = Literal["holds", "contradicted", "not shown"]
CONVERGED = "both with a converged classifier"


@dataclass(frozen=True, eq=False)
class Claim:
    """What the paper says, and what was measured.

    Attributes:
        compared: encoders that were measured; those of a second family are subtracted.
        estimates: by unit.
    """

    name: str
    compared: tuple[Sequence[str], ...]
    verdict: State
    estimates: Mapping[str, Estimate]

    @property
    def of(self) -> str:
        return " − ".join(", ".join(encoders) for encoders in self.compared)

    @property
    def briefly_of(self) -> str:
        """As `of`, with the number of encoders where there are more than two."""
        return " − ".join(f"{len(e)} encoders" if len(e) > 2 else ", ".join(e) for e in self.compared)


def claims(inputs: Inputs) -> list[Claim]:
    """Of gains over [cls] on the page's data set (Table 1), and of entropies of [cls]'s attention (Fig. 4, Table 3 of v2)."""
    return [*claims_on_gains(inputs.probes, _twins(inputs)), *_claims_on_entropies(inputs)]


def claims_on_gains(probes: Probes, twins: Mapping[str, str] | None = None) -> list[Claim]:
    """Of AbMILP − [cls] on one data set; those for which there are encoders.

    A family's gain is the mean over its encoders, with the encoder as the unit where there are several. That it gains more on
    one than on another is judged where points and log-odds agree, as at another accuracy points and shares mean another thing.

    Args:
        twins: of each trained encoder the untrained one to compare with; the first of all by default.
    """
    over_cls = {encoder: gain for (encoder, over), gain in gains(probes).items() if over == "cls"}
    random = [encoder for encoder in over_cls if encoder in untrained_encoders(probes)]
    by_family = {
        family: {e: gain for e, gain in over_cls.items() if probes[e, "cls"].pretraining.family == family and e not in random}
        for family in (MASKED, JOINT, LABELS)
    }
    masked = by_family[MASKED]
    result = [_claim_on_one_family(AHEAD, masked, lambda points: _STATES[points.sign])] if masked else []
    others = {family: by_family[family] for family in (JOINT, LABELS) if by_family[family]}
    result += [_claim_on_one_family(NO_MORE[family], of_family, _is_no_more) for family, of_family in others.items()]
    if not masked:
        return result
    result += [_claim_on_difference(MORE[family], masked, of_family) for family, of_family in others.items()]
    pairs = {e: (twins or {}).get(e, random[0] if random else None) for e in masked}
    of_twins = {twin: over_cls[twin] for twin in pairs.values() if twin in over_cls}
    return [*result, _claim_on_difference(BEYOND, masked, of_twins)] if of_twins else result


def table(inputs: Inputs) -> Table | None:
    """Claims on the page's data set, also with converged classifiers; None where there is nothing to judge."""
    groups = {"": claims(inputs), CONVERGED: claims_on_gains(with_converged(inputs.probes), _twins(inputs))}
    return _table("claims", "What the paper claims, here", groups, basis(inputs.probes))


def table_by_dataset(datasets: Mapping[str, Probes]) -> Table | None:
    """Claims on gains by data set, which count one by one: sets of images may overlap, and are no sample of sets."""
    groups = {name: claims_on_gains(probes) for name, probes in datasets.items()}
    return _table("claims-by-dataset", "What the paper claims, by data set", groups, "")


def _table(name: str, title: str, groups: Mapping[str, Sequence[Claim]], note: str) -> Table | None:
    about = (
        "A claim holds or is contradicted where its 95 % interval over test images and seeds is on one side of 0, or of "
        f"{MARGIN:g} point where it says “no more than”; that it gains more, where points and log-odds agree. Everything else "
        "is not shown. Of several encoders of a family their mean, with the encoder as the unit; one encoder says nothing of "
        "its family. A twin was never trained: what AbMILP gains on it takes no knowledge of images."
    )
    rows = [(group, claim) for group, of_group in groups.items() for claim in of_group]

    def both(unit: str) -> list[DeclaredColumn]:
        return [
            cells(UNITS[unit], unit.capitalize(), lambda row: _signed_cell(row[1].estimates.get(unit), unit), apart=True),
            cells(f"{UNITS[unit]}_interval", "95 %", lambda row: interval(row[1].estimates.get(unit), _digits(unit)), "text"),
        ]

    return (
        declared(
            name,
            title,
            f"{about} {note}".strip(),
            rows,
            texts("claim", "Claim", lambda row: row[1].name),
            cells("encoders", "Encoders", lambda row: Cell(row[1].briefly_of, row[1].of), "text"),
            texts("verdict", "Verdict", lambda row: row[1].verdict),
            each([unit for unit in UNITS if any(unit in claim.estimates for _, claim in rows)], both),
            group=lambda row: row[0],
        )
        if rows
        else None
    )


def _signed_cell(estimate: Estimate | None, unit: str) -> Cell:
    if estimate is None:
        return NOTHING
    rounded, digits = round(estimate.mean, _digits(unit)), _digits(unit)
    return Cell(f"{rounded:+.{digits}f}".replace("-", "−") if rounded else "0", estimate.mean)


def _digits(unit: str) -> int:
    return 2 if unit == NATS else 1


def _twins(inputs: Inputs) -> dict[str, str]:
    return {encoder: twin for encoder in inputs.encoders if (twin := inputs.twin(encoder)) is not None}


def _claim_on_one_family(name: str, of_family: Mapping[str, Gain], judge: Callable[[Estimate], State]) -> Claim:
    gain = _mean_gain(of_family)
    return Claim(name, (list(of_family),), judge(gain.points), _by_unit(gain))


def _is_no_more(points: Estimate) -> State:
    """Not that it is not clearly more, but that it is clearly not more than MARGIN."""
    if points.sign is None or points.interval is None:
        return "not shown"
    low, high = points.interval
    return "holds" if high <= MARGIN else "contradicted" if low > MARGIN else "not shown"


def _claim_on_difference(name: str, masked: Mapping[str, Gain], others: Mapping[str, Gain]) -> Claim:
    more = _mean_gain(masked).minus(_mean_gain(others))
    agree = more.log_odds is None or more.log_odds.sign == more.points.sign
    return Claim(name, (list(masked), list(others)), _STATES[more.points.sign] if agree else "not shown", _by_unit(more))


_STATES: Mapping[int | None, State] = {1: "holds", -1: "contradicted", 0: "not shown", None: "not shown"}


def _mean_gain(of_family: Mapping[str, Gain]) -> Gain:
    """Over encoders; shares and log-odds where all have them."""
    name = ", ".join(of_family)

    def mean(estimates: Iterable[Estimate | None]) -> Estimate | None:
        each = list(estimates)
        known = [one for one in each if one is not None]
        return mean_over_encoders(name, known) if len(known) == len(each) else None

    points = mean_over_encoders(name, [gain.points for gain in of_family.values()])
    return Gain(points, mean(g.share for g in of_family.values()), mean(g.log_odds for g in of_family.values()))


def _by_unit(gain: Gain) -> dict[str, Estimate]:
    return {POINTS: gain.points} | ({} if gain.share is None else {SHARE: gain.share})


def _claims_on_entropies(inputs: Inputs) -> list[Claim]:
    """Entropy of [cls]'s attention to patches, masked − joint; among encoders of one number of patches."""
    known = {n: a for n in inputs.encoders if (a := inputs.attention.get(n)) and last_block(a) is not None and limit(a)}
    of = {family: {n: a for n, a in known.items() if a.pretraining.family == family} for family in (MASKED, JOINT)}
    compared = [a for of_family in of.values() for a in of_family.values()]
    if not all(of.values()) or len({a.n_tokens for a in compared}) > 1:
        return []
    result = []
    for where, measure, blocks in (("last block", last_block, slice(-1, None)), ("all blocks", over_blocks, slice(None))):
        masked, joint = (
            mean_over_encoders(family, [_entropy(a, measure(a) or 0.0, blocks) for a in of[family].values()]) for family in of
        )
        more = masked.minus(joint)
        low, high = more.interval or (-math.inf, math.inf)
        state: State = "holds" if low > 0 else "contradicted" if high < 0 else "not shown"
        result.append(Claim(EVEN[where], (list(of[MASKED]), list(of[JOINT])), state, {NATS: more}))
    return result


def _entropy(attention: AttentionResult, mean: float, blocks: slice) -> Estimate:
    """Its spread over images is known, the single images are not: as many units with that spread, independent of others'.

    Of several blocks the mean of their spreads, which is the most that their mean can have.
    """
    stds = [std for _, std in attention.statistics[ENTROPY][blocks]]
    units = mean + sum(stds) / len(stds) * np.resize([1.0, -1.0], attention.n_images)
    return Estimate(mean, 0.0, 1, {Variation("images", f"{attention.key} {attention.encoder}"): units})
