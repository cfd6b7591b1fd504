"""How much more AbMILP gains on masked encoders than on other ones and on a random twin: the paper's claim."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pipelines.report.estimate import Estimate, Probes
from pipelines.report.gains import OVER, Gain, gains
from pipelines.report.measured import untrained
from pipelines.report.tables import listed
from store.format.pretraining import JOINT, LABELS, MASKED

AGREES, FAILS = "As the paper says", "Not as the paper says"
BEYOND, WITHIN = "More than selection alone explains", "Not clearly more than selection alone explains"
UNKNOWN = "Not to be judged with one seed"
WORDS = {
    1: "AbMILP gains more",
    0: "AbMILP does not clearly gain more",
    -1: "AbMILP gains less",
    None: "whether AbMILP gains more",
}


@dataclass(frozen=True)
class Lead:
    """What AbMILP gains on a masked encoder, on a joint-embedding one, on one that saw labels, and on an untrained twin.

    Attributes:
        masked: of several, the one on which AbMILP gains the fewest points over [cls].
        joint: of several, the one on which it gains the most.
        labelled: likewise, of those that were trained or fine-tuned on labels; None without any.
        twin: None if no untrained encoder has these heads. Selection alone explains what AbMILP gains on it.
        gains: by encoder and the head that AbMILP is compared with.
        families: of the encoders that are of one of those that Table 1 of the paper has.
    """

    masked: str
    joint: str
    labelled: str | None
    twin: str | None
    gains: Mapping[tuple[str, str], Gain]
    families: Mapping[str, str]

    def more(self, than: str, over: str = "cls") -> Gain | None:
        """How much more it gains on `masked` than on another encoder; None where heads are missing."""
        one, other = self.gains.get((self.masked, over)), self.gains.get((than, over))
        return None if one is None or other is None else one.minus(other)

    @property
    def others(self) -> list[str]:
        """What `masked` is compared with."""
        return [encoder for encoder in (self.joint, self.labelled, self.twin) if encoder]

    @property
    def contrasts(self) -> list[tuple[str, str, str]]:
        """Label and two encoders of each."""
        return [(f"{self.masked} − {other}", self.masked, other) for other in self.others]


def lead(probes: Probes, twin: str | None = None) -> Lead | None:
    """The masked encoder that gains least over [cls], compared with the joint-embedding one that gains most; None without both.

    Args:
        twin: the untrained encoder to compare with; the first one by default.
    """
    all_gains = gains(probes)
    points = {encoder: gain.points.mean for (encoder, over), gain in all_gains.items() if over == "cls"}
    kinds = (MASKED, JOINT, LABELS)
    families = {e: kind for (e, _), p in probes.items() if e in points and (kind := p.pretraining.family) in kinds}
    by_family = {kind: [encoder for encoder in points if families.get(encoder) == kind] for kind in kinds}
    if not (by_family[MASKED] and by_family[JOINT]):
        return None
    randoms = [encoder for encoder in points if encoder in untrained(probes)]
    beside = twin if twin in randoms else next(iter(randoms), None)
    masked, joint = min(by_family[MASKED], key=points.__getitem__), max(by_family[JOINT], key=points.__getitem__)
    labelled = max(by_family[LABELS], key=points.__getitem__, default=None)
    return Lead(masked, joint, labelled, beside, all_gains, families)


def headline(lead: Lead, called: Callable[[str], str] = str, heads: Iterable[str] = OVER) -> str:
    """The share of the errors of [cls], and of the average patch, that AbMILP removes; a sentence each, with the twin's share.

    Args:
        called: the name by which an encoder is shown.
        heads: that AbMILP is compared with.
    """
    sentences = []
    for over in heads:
        name = OVER[over]
        gains = {encoder: gain for encoder in (lead.masked, *lead.others) if (gain := lead.gains.get((encoder, over)))}
        if lead.masked not in gains or lead.joint not in gains:
            continue
        numbers = {encoder: _in_words(gain) for encoder, gain in gains.items()}
        errors = all(gain.share for gain in gains.values())
        sentence = f"Of the errors that {name} makes, AbMILP removes " if errors else f"Over {name} AbMILP gains "
        sentence += f"{numbers[lead.masked]} on {called(lead.masked)} and {numbers[lead.joint]} on {called(lead.joint)}"
        if lead.twin in numbers:
            sentence += f"; selection alone explains {numbers[lead.twin]}, as on {called(lead.twin)}, which was never trained"
        sentences.append(f"{sentence}.")
    return " ".join(sentences)


def verdicts(lead: Lead, called: Callable[[str], str] = str) -> dict[str, list[str]]:
    """Statements with their numbers, by verdict: as the paper says or not, and whether a random twin gains as much.

    The paper's Table 1: AbMILP is ahead of [cls] on masked encoders, hardly on joint-embedding ones and on those that were
    trained or fine-tuned on labels, and so gains more on the former. It has no untrained twin: what AbMILP gains on it does
    not come from pretraining.
    """
    by_verdict: dict[str, list[str]] = {verdict: [] for verdict in (AGREES, FAILS, BEYOND, WITHIN, UNKNOWN)}

    def judge(sign: int | None, yes: str, no: str, statement: str) -> None:
        by_verdict[UNKNOWN if sign is None else yes if sign == 1 else no].append(statement)

    for (encoder, over), gain in lead.gains.items():
        kind, sign = lead.families.get(encoder), gain.points.sign
        if over == "cls" and kind is not None:
            ahead = f"{'whether ' if sign is None else ''}AbMILP is {'not clearly ' if sign in (0, -1) else ''}ahead of [cls]"
            masked = kind == MASKED
            too = "" if masked or sign != 1 else ", too"
            judge(sign, *((AGREES, FAILS) if masked else (FAILS, AGREES)), f"{ahead} on {called(encoder)}{too}")
    for other in lead.others:
        yes, no = (BEYOND, WITHIN) if other == lead.twin else (AGREES, FAILS)
        for over, name in OVER.items():
            more = lead.more(other, over)
            for sign, numbers in _by_sign(more).items() if more else ():
                pair = f"on {called(lead.masked)} than on {called(other)}"
                judge(sign, yes, no, f"over {name} {WORDS[sign]} {pair}, {listed(numbers)}")
    return {verdict: statements for verdict, statements in by_verdict.items() if statements}


def _in_words(gain: Gain) -> str:
    """`11.4 ± 0.3 % [9.8 to 13.0] (+4.4 ± 0.1 points [3.8 to 5.0])`."""
    points = gain.points.in_words("points")
    return points if gain.share is None else f"{gain.share.in_words('%', sign=False)} ({points})"


def _by_sign(more: Gain) -> dict[int | None, list[str]]:
    """Points and share, by their signs: together where they agree."""
    by_sign: dict[int | None, list[str]] = {}
    parts: list[tuple[Estimate | None, str]] = [(more.points, "points"), (more.share, "percentage points of the errors")]
    for estimate, unit in parts:
        if estimate is not None:
            by_sign.setdefault(estimate.sign, []).append(estimate.in_words(unit))
    return by_sign
