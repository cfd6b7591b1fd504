"""The first screen: what selection gains on each encoder, three numbers, and which claims hold."""

from pipelines.report.claims import claims, verdicts
from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Number, Numbers, Section, Text, Verdicts
from pipelines.report.error_shares import POINTS, SHARE, error_shares, estimates_over_cls, in_short
from pipelines.report.families import LOOKS, families
from pipelines.report.scores import WORDS, score_name
from pipelines.report.tables import plus_minus, title
from store.format.pretraining import JOINT, MASKED, UNTRAINED

GAINED = {
    SHARE: "Of the errors that [cls] makes on test images, a head that selects among the patches (AbMILP) removes:",
    POINTS: "A head that selects among the patches (AbMILP) reaches so much more than [cls] on test images:",
}
N_NUMBERS = 3


def section(inputs: Inputs) -> Section | None:
    """None without probes."""
    if not inputs.probes:
        return None
    plot, judged = error_shares(inputs), verdicts(claims(inputs))
    blocks: list[Block] = [Text(GAINED[estimates_over_cls(inputs)[1]], kind="lead")] if plot else []
    blocks.append(Numbers(tuple(_numbers(inputs))))
    blocks += [plot] if plot else []
    blocks += [Verdicts("What the paper claims, here", judged)] if judged else []
    blocks.append(Text(basis(inputs), kind="note"))
    return Section("summary", "At a glance", tuple(blocks))


def basis(inputs: Inputs) -> str:
    """`cifar10: 4 encoders, 19 heads; 50,000 training and 10,000 test images of 10 classes, 3 seeds.`"""
    probes = list(inputs.probes.values())
    others = len(inputs.datasets) - (inputs.folders.dataset in inputs.datasets)
    counts = (
        f"{_counted(len({p.encoder for p in probes}), 'encoder')}, {_counted(len(inputs.heads), 'head')}; "
        f"{max(p.n_training for p in probes):,} training and {min(p.n_test for p in probes):,} test images of "
        f"{max(p.n_classes for p in probes):,} classes, {_counted(min(len(p.seeds) for p in probes), 'seed')}."
    )
    name = f"{inputs.folders.dataset}: " if inputs.folders.dataset else ""
    below = f" {_counted(others, 'other data set')} below." if others > 0 else ""
    return name + counts + below


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _numbers(inputs: Inputs) -> list[Number]:
    """Of the encoders on which AbMILP gains most, one of each family first; without AbMILP, the best head."""
    estimates, unit = estimates_over_cls(inputs)
    if not estimates:
        best = max(inputs.probes.values(), key=lambda probe: probe.score.mean)
        about = f"{WORDS[score_name([best])]} of {title(best.head)} on {best.encoder}, the most here"
        return [Number(f"{best.score.mean:.1f}\N{NO-BREAK SPACE}%", about, plus_minus(best.score))]
    by_encoder = families(inputs.probes)
    most_first = sorted(estimates, key=lambda encoder: -estimates[encoder].mean)
    of_families = [next((e for e in most_first if by_encoder[e] == family), None) for family in (MASKED, JOINT, UNTRAINED)]
    shown = dict.fromkeys([encoder for encoder in of_families if encoder is not None] + most_first)
    numbers = []
    for encoder in list(shown)[:N_NUMBERS]:
        (value, detail), look = in_short(estimates[encoder], unit), LOOKS[by_encoder[encoder]]
        numbers.append(Number(value, f"on {encoder}", f"{detail} · {look.name}", look))
    return numbers
