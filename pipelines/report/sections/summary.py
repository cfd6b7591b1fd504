"""The first screen: the contrast that was declared and what to compare it with, what selection gains, and which claims hold."""

import matplotlib
from matplotlib.figure import Figure as Plot

from pipelines.parameters.params import Primary
from pipelines.report import claims
from pipelines.report.collect import Inputs
from pipelines.report.content import Figures, Section, Table, Text, section_of
from pipelines.report.contrasts import VERDICTS
from pipelines.report.drawing import INK, STYLE, WIDTH, colour, drawn
from pipelines.report.estimate import Estimate, estimate_of
from pipelines.report.families import LOOKS, families
from pipelines.report.gains import gains
from pipelines.report.remarks import WORDS, score_name
from pipelines.report.tables import cells, change, differences, plus_minus, selects, table, texts, title
from store.format.pretraining import UNTRAINED

SHARE, POINTS = "%", "points"  # units
GAINED = {
    SHARE: "Of the errors that [cls] makes on test images, a head that selects among the patches (AbMILP) removes:",
    POINTS: "A head that selects among the patches (AbMILP) reaches so much more than [cls] on test images:",
}
BESIDE = (
    "In points, mean ± standard deviation over seeds; 95 %: over test images and seeds. Ahead or behind: that is on one "
    "side of 0."
)


def section(inputs: Inputs) -> Section | None:
    """None without probes."""
    if not inputs.probes:
        return None
    plot, declared = error_shares(inputs), _primary_table(inputs)
    lead = GAINED[estimates_over_cls(inputs)[1]] if plot else _best_head(inputs)
    return section_of(
        "summary",
        "At a glance",
        declared or Text(lead, kind="lead"),
        plot,
        claims.table(inputs),
        Text(f"{basis(inputs)} {_declared_in_advance(inputs)}", kind="note"),
    )


def basis(inputs: Inputs) -> str:
    """`cifar10: 4 encoders, 19 heads; 50,000 training and 10,000 test images of 10 classes, 3 seeds.`"""
    probes = list(inputs.probes.values())
    others = len(inputs.datasets) - (inputs.folders.dataset in inputs.datasets)
    counts = (
        f"{_format_count(len({p.encoder for p in probes}), 'encoder')}, {_format_count(len(inputs.heads), 'head')}; "
        f"{max(p.n_training for p in probes):,} training and {min(p.n_test for p in probes):,} test images of "
        f"{max(p.n_classes for p in probes):,} classes, {_format_count(min(len(p.seeds) for p in probes), 'seed')}."
    )
    name = f"{inputs.folders.dataset}: " if inputs.folders.dataset else ""
    below = f" {_format_count(others, 'other data set')} below." if others > 0 else ""
    return name + counts + below


def _format_count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _pairs(inputs: Inputs) -> dict[str, tuple[Estimate, Estimate]]:
    """Both heads of the primary contrast, percent, on each encoder that has both."""
    if (primary := inputs.folders.primary) is None:
        return {}
    pairs = {e: [inputs.probes.get((e, head)) for head in (primary.head, primary.over)] for e in inputs.encoders}
    return {e: (estimate_of(one), estimate_of(other)) for e, (one, other) in pairs.items() if one and other}


def _primary_table(inputs: Inputs) -> Table | None:
    """The primary contrast, and what to compare it with; None where it was not declared, or not measured.

    That is the same contrast on an encoder of another family and on the untrained twin, and the best head without weights.
    """
    pairs, primary, family = _pairs(inputs), inputs.folders.primary, families(inputs.probes)
    if primary is None or primary.encoder not in pairs:
        return None
    contrasts, (one, other) = {e: a.minus(b) for e, (a, b) in pairs.items()}, pairs[primary.encoder]
    points = contrasts[primary.encoder]
    rows = [(_describe_primary(primary), points)]
    compared_with = [name for name in LOOKS if name not in (family[primary.encoder], UNTRAINED)]
    others = [encoder for name in compared_with for encoder in contrasts if family[encoder] == name]
    rows += [(f"more than on {encoder}", points.minus(contrasts[encoder])) for encoder in others[:1]]
    if (twin := inputs.twin(primary.encoder)) in contrasts:
        rows.append((f"gained by {twin}, which was never trained", contrasts[twin]))
    heads = [p for p in inputs.probes_of(primary.encoder) if p.head not in (primary.head, primary.over) and not selects(p)]
    if best := max(heads, key=lambda probe: probe.score.mean, default=None):
        about = f"compared with {title(best.head)}, the best head there that weights no patches"
        rows.append((about, one.minus(estimate_of(best))))
    share = one.share_of(other) if score_name(inputs.probes.values()) == "top1" else None
    return table(
        "declared",
        "The contrast that was declared in advance, and what to compare it with",
        BESIDE,
        rows,
        texts("contrast", "Contrast", lambda row: row[0]),
        differences("points", "Points", lambda row: row[1], fixed=True),
        texts("verdict", "Verdict", lambda row: VERDICTS[row[1].sign]),
        cells("share", "Errors removed, %", lambda row: change(share if row[1] is points else None), "spread", optional=True),
    )


def _describe_primary(primary: Primary) -> str:
    return f"{title(primary.head)} − {title(primary.over)} on {primary.encoder}"


def _declared_in_advance(inputs: Inputs) -> str:
    """What was declared in advance, and that all else was not."""
    if (primary := inputs.folders.primary) is None:
        return "No contrast was declared in advance (primary in params.yaml), so all of them are exploratory."
    missing = "" if primary.encoder in _pairs(inputs) else " and is not measured here"
    return f"{_describe_primary(primary)} was declared in advance{missing}; all other contrasts are exploratory."


def _best_head(inputs: Inputs) -> str:
    """The head that reaches most."""
    best = max(inputs.probes.values(), key=lambda probe: probe.score.mean)
    return f"The most here: {plus_minus(best.score)} % {WORDS[score_name([best])]} of {title(best.head)} on {best.encoder}."


def estimates_over_cls(inputs: Inputs) -> tuple[dict[str, Estimate], str]:
    """By encoder, the share of [cls]'s errors that AbMILP removes, and the unit; points where there is no share, as of mAP."""
    over_cls = {encoder: gain for (encoder, over), gain in gains(inputs.probes).items() if over == "cls"}
    shares = {encoder: gain.share for encoder, gain in over_cls.items() if gain.share is not None}
    if len(shares) == len(over_cls):
        return shares, SHARE
    return {encoder: gain.points for encoder, gain in over_cls.items()}, POINTS


def in_short(estimate: Estimate, unit: str) -> tuple[str, str]:
    """`11.4 %` and `9.8 to 13.0`; the spread over seeds in place of an interval that is unknown."""
    value = f"{round(estimate.mean, 1) + 0.0:.1f}\N{NO-BREAK SPACE}{unit}".replace("-", "−")
    if estimate.interval is not None:
        return value, estimate.bounds()
    return value, f"± {estimate.std:.1f} over seeds" if estimate.n_seeds > 1 else "one seed"


def error_shares(inputs: Inputs) -> Figures | None:
    """A bar for each encoder, from the largest on; None without AbMILP and [cls] on any."""
    estimates, unit = estimates_over_cls(inputs)
    if not estimates:
        return None
    by_encoder = families(inputs.probes)
    ordered = sorted(estimates, key=lambda encoder: estimates[encoder].mean)  # upwards
    texts = {encoder: "{} ({})".format(*in_short(estimates[encoder], unit)) for encoder in ordered}
    twins = [inputs.twin(encoder) for encoder in reversed(ordered) if encoder not in inputs.untrained]
    twin = next((name for name in (*twins, *sorted(inputs.untrained)) if name in estimates), None)
    with matplotlib.rc_context(STYLE | {"axes.grid.axis": "x"}):
        plot = Plot(figsize=(WIDTH[0] * 1.2, 0.75 + 0.26 * len(ordered)))
        axes = plot.subplots()
        axes.axvline(0, color=INK, linewidth=0.8)
        if twin:
            axes.axvline(estimates[twin].mean, color=colour(LOOKS[UNTRAINED]), linestyle="dashed", linewidth=1)
            if bounds := estimates[twin].interval:
                axes.axvspan(*bounds, color=colour(LOOKS[UNTRAINED]), alpha=0.18, linewidth=0)
        for row, encoder in enumerate(ordered):
            one, look = estimates[encoder], LOOKS[by_encoder[encoder]]
            reach = None if one.interval is None else [[one.mean - one.interval[0]], [one.interval[1] - one.mean]]
            axes.errorbar(one.mean, row, xerr=reach, color=colour(look), marker=look.marker, linewidth=2)
            axes.annotate(texts[encoder], (1, row), (5, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=8)
        axes.set_yticks(range(len(ordered)), ordered)
    what = "Share of the errors of [cls] that AbMILP removes, %" if unit == SHARE else "What AbMILP gains over [cls], points"
    caption = "Marks: mean over seeds; bars: 95 % over test images and seeds, where known."
    if twin:
        caption += f" The band: what it gains on {twin}, which was never trained."
    alt = "; ".join(f"{encoder}: {texts[encoder]}" for encoder in reversed(ordered))
    legend = tuple(look for family, look in LOOKS.items() if family in {by_encoder[encoder] for encoder in ordered})
    return Figures((drawn(plot, "error-shares", what, caption, f"{what}. {alt}", legend),), legend)
