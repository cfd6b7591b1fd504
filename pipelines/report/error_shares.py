"""The figure that carries the claim: the share of [cls]'s errors that AbMILP removes, by encoder, beside the random twin."""

from matplotlib.ticker import MaxNLocator

from pipelines.report.collect import Inputs
from pipelines.report.content import Interval, Intervals
from pipelines.report.estimate import Estimate
from pipelines.report.families import LOOKS, families
from pipelines.report.gains import gains

SHARE, POINTS = "%", "points"  # units


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


def error_shares(inputs: Inputs) -> Intervals | None:
    """A row for each encoder, from the largest on; None without AbMILP and [cls] on any."""
    estimates, unit = estimates_over_cls(inputs)
    if not estimates:
        return None
    by_encoder = families(inputs.probes)
    ordered = sorted(estimates, key=lambda encoder: -estimates[encoder].mean)
    rows = {encoder: _row(encoder, estimates[encoder], unit, by_encoder[encoder]) for encoder in ordered}
    trained = [encoder for encoder in ordered if encoder not in inputs.untrained]
    twin = next((twin for encoder in trained if (twin := inputs.twin(encoder)) in rows), None)
    twin = twin or next((encoder for encoder in ordered if encoder in inputs.untrained), None)
    what = "Share of the errors of [cls] that AbMILP removes, %" if unit == SHARE else "What AbMILP gains over [cls], points"
    note = "Marks: mean over seeds; bars: 95 % over test images and seeds, where known."
    if twin:
        note += f" The band: what it gains on {twin}, which was never trained."
    legend = tuple(look for family, look in LOOKS.items() if family in {by_encoder[encoder] for encoder in ordered})
    return Intervals(what, note, tuple(rows.values()), rows.get(twin or ""), _ticks(tuple(rows.values())), legend, "gains")


def _row(encoder: str, estimate: Estimate, unit: str, family: str) -> Interval:
    text, detail = in_short(estimate, unit)
    return Interval(encoder, LOOKS[family], estimate.mean, estimate.interval, text, detail)


def _ticks(rows: tuple[Interval, ...]) -> tuple[float, ...]:
    """Of an axis that has 0 and all bounds."""
    values = [0.0, *(value for row in rows for value in (row.value, *(row.bounds or ())))]
    if min(values) == max(values):
        return (0.0, 1.0)
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(min(values), max(values))
    return tuple(float(tick) for tick in ticks)
