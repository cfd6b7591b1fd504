"""The paper's claims, each with whether it holds here, in one line."""

from collections.abc import Collection, Mapping
from typing import Literal

from pipelines.report.claim import evenness, lead_on_page
from pipelines.report.collect import Inputs
from pipelines.report.content import Verdict
from pipelines.report.gains import Gain
from pipelines.report.lead import Lead, lead
from pipelines.report.tables import listed
from store.format.pretraining import MASKED

AHEAD = "AbMILP is ahead of [cls] on masked encoders"
NOT_AHEAD = "It is not ahead of [cls] on other trained encoders"
MORE = "It gains more on a masked encoder than on a joint-embedding one"
BEYOND = "It gains more there than on random weights: not by selection alone"
EVEN = "[cls] of masked encoders looks at the patches more evenly"
State = Literal["holds", "fails", "open"]


def judged(inputs: Inputs) -> tuple[Verdict, ...]:
    """Claims about gains on the page's data set, with how many of the others agree; then that about entropies."""
    leading = lead_on_page(inputs)
    verdicts = [] if leading is None else list(_of_gains(leading).values())
    others = [of_set for name, probes in inputs.datasets.items() if name != inputs.folders.dataset and (of_set := lead(probes))]
    if others:
        elsewhere = [_of_gains(of_set) for of_set in others]
        verdicts = [_with_others(verdict, [of_set[verdict.claim] for of_set in elsewhere]) for verdict in verdicts]
    return (*verdicts, *_of_entropies(inputs))


def _of_gains(leading: Lead) -> dict[str, Verdict]:
    """By claim, on one data set."""
    signs = {encoder: gain.points.sign for (encoder, over), gain in leading.gains.items() if over == "cls"}
    masked = {encoder: signs[encoder] for encoder, family in leading.families.items() if family == MASKED}
    others = {encoder: signs[encoder] for encoder, family in leading.families.items() if family != MASKED}
    verdicts = [
        Verdict(AHEAD, _all(masked.values(), {1}), _counted(masked)),
        Verdict(NOT_AHEAD, _all(others.values(), {0, -1}), _counted(others)),
        _compared(MORE, leading, leading.joint),
        _compared(BEYOND, leading, leading.twin),
    ]
    return {verdict.claim: verdict for verdict in verdicts}


def _all(signs: Collection[int | None], wanted: set[int]) -> State:
    """Open where nothing speaks against it and some signs are unknown."""
    if any(sign is not None and sign not in wanted for sign in signs):
        return "fails"
    return "open" if None in signs else "holds"


def _counted(signs: Mapping[str, int | None]) -> str:
    """`ahead on 2 of 3: mae and simmim`."""
    unknown = [encoder for encoder, sign in signs.items() if sign is None]
    if len(unknown) == len(signs):
        return "one seed, no interval: not to be judged"
    ahead = [encoder for encoder, sign in signs.items() if sign == 1]
    return f"ahead on {len(ahead)} of {len(signs)}{': ' if ahead else ''}{listed(ahead) if ahead else ''}"


def _compared(claim: str, leading: Lead, other: str | None) -> Verdict:
    """By the share of errors, as the figure shows it; by points where there is none. Says where points tell otherwise."""
    more = leading.more(other) if other else None
    if more is None:
        return Verdict(
            claim, "open", "no untrained encoder has been probed with both" if other is None else "heads are missing"
        )
    counts = more.share or more.points
    state: State = "open" if counts.sign is None else "holds" if counts.sign == 1 else "fails"
    detail = f"{_numbers(more)} ({leading.masked} − {other})"
    if more.share is not None and more.points.sign != more.share.sign:
        detail += f"; in points it {'does' if more.points.sign == 1 else 'does not clearly'}"
    return Verdict(claim, state, detail)


def _numbers(more: Gain) -> str:
    if more.share is not None:
        return more.share.in_words("percentage points of the errors")
    return more.points.in_words("points")


def _with_others(verdict: Verdict, elsewhere: list[Verdict]) -> Verdict:
    alike = sum(other.state == verdict.state for other in elsewhere)
    of_others = f"the same on {alike} of {len(elsewhere)} other data set{'s' * (len(elsewhere) != 1)}"
    return Verdict(verdict.claim, verdict.state, f"{verdict.detail}; {of_others}")


def _of_entropies(inputs: Inputs) -> list[Verdict]:
    even = evenness(inputs)
    if not even:
        return []
    holds = [where for where, is_above in even.items() if is_above]
    fails = [where for where in even if where not in holds]
    parts = [*([f"holds {listed(holds)}"] if holds else []), *([f"does not hold {listed(fails)}"] if fails else [])]
    return [Verdict(EVEN, "fails" if fails else "holds", f"entropy of its attention: {'; '.join(parts)}")]
