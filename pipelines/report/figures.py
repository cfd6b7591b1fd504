"""Figures as inline SVG. Colours are CSS variables of the page, so that they follow its light or dark look."""

import io
import math
import re
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pipelines.report.collect import Attention, Inputs, Probe, is_random
from pipelines.report.tables import title

INK = "#0a0b0c"  # stands for the page's text colour until the SVG is written
N_COLOURS = 6  # --series-0 … --series-5 of page.css; --series-random is grey
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "beyondcls",
    "svg.fonttype": "none",
    "font.size": 9,
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}


@dataclass(frozen=True)
class Statistic:
    """One of the four plots; `figure` is its number in the paper."""

    name: str
    figure: int
    title: str
    axis: str
    entropy: bool


STATISTICS = (
    Statistic("cls_self", 3, "Attention of [cls] to itself", "share of attention, 0–1", False),
    Statistic("cls_patch_entropy", 4, "Entropy of the attention of [cls] to the patches", "entropy, nats", True),
    Statistic("patch_self", 5, "Attention of patches to themselves", "share of attention to patches, 0–1", False),
    Statistic("patch_patch_entropy", 6, "Entropy of the attention of patches to patches", "entropy, nats", True),
)


@dataclass(frozen=True)
class Look:
    """How a series is drawn: `colour` is a CSS variable, `dash` a line style of matplotlib."""

    name: str
    colour: str
    dash: str
    marker: str
    symbol: str


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption and the names of encoders that are not in it."""

    title: str
    caption: str
    svg: str
    alt: str
    missing: tuple[str, ...] = ()


def looks(names: list[str]) -> dict[str, Look]:
    """Colour, dashes and marker of each name, in order; random encoders are grey and dashed."""
    found, n = {}, 0
    for name in names:
        if is_random(name):
            found[name] = Look(name, "var(--series-random)", "dashed", "x", "×")
            continue
        marker, symbol = MARKERS[n % len(MARKERS)]
        dash = "solid" if n < N_COLOURS else "dashdot"
        found[name] = Look(name, f"var(--series-{n % N_COLOURS})", dash, marker, symbol)
        n += 1
    return found


def statistics_figures(inputs: Inputs) -> list[Drawing]:
    """Fig. 3-6 with all encoders in each: mean over heads and images per block, a band of one std over images."""
    return [_statistic(inputs, statistic) for statistic in STATISTICS]


def _statistic(inputs: Inputs, statistic: Statistic) -> Drawing:
    series = {n: a for n in inputs.encoders if (a := inputs.attention.get(n)) and a.statistics.get(statistic.name)}
    missing = tuple(n for n in inputs.encoders if n not in series)
    caption = f"As Fig. {statistic.figure} of the paper."
    if not series:
        return Drawing(statistic.title, caption, "", "", missing)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 2.9), layout="constrained")
        axes = figure.subplots()
        for name, attention in series.items():
            _line(axes, looks(inputs.encoders)[name], attention, statistic.name)
        if statistic.entropy:
            for n_tokens in sorted({a.n_tokens for a in series.values() if a.n_tokens}):
                axes.axhline(math.log(n_tokens), color=INK, linewidth=0.9, linestyle=(0, (5, 3)), alpha=0.75)
                text = f"ln {n_tokens} = {math.log(n_tokens):.2f}"
                axes.annotate(text, (1, math.log(n_tokens)), (0, 3), ("axes fraction", "data"), "offset points", ha="right")
        if not statistic.entropy:
            axes.set_ylim(bottom=0)
        axes.set_xlabel("block, counted from 0")
        axes.set_ylabel(statistic.axis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.6)
        alt = f"{statistic.title} per block ({statistic.axis}). " + " ".join(
            _told(name, attention.statistics[statistic.name]) for name, attention in series.items()
        )
        return Drawing(statistic.title, caption, _svg(figure, statistic.name, looks(inputs.encoders)), alt, missing)


def _line(axes: Axes, look: Look, attention: Attention, name: str) -> None:
    mean = [m for m, _ in attention.statistics[name]]
    std = [s for _, s in attention.statistics[name]]
    blocks = range(len(mean))
    low, high = [m - s for m, s in zip(mean, std, strict=True)], [m + s for m, s in zip(mean, std, strict=True)]
    colour = _stand_in(look)
    axes.fill_between(blocks, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(blocks, mean, color=colour, linestyle=look.dash, marker=look.marker)


def _told(name: str, values: tuple[tuple[float, float], ...]) -> str:
    means = [mean for mean, _ in values]
    return f"{name}: {means[0]:.2f} in the first block, {means[-1]:.2f} in the last, from {min(means):.2f} to {max(means):.2f}."


def curve_figures(inputs: Inputs) -> list[Drawing]:
    """Loss and top-1 by epoch, mean over seeds: one drawing per encoder, a line per head, on the same axes throughout."""
    curves = [p.curve for p in inputs.probes.values() if p.curve]
    drawings = []
    for encoder in inputs.encoders:
        probes = [p for p in inputs.of(encoder) if p.curve]
        if not probes:
            drawings.append(Drawing(encoder, "", "", "", (encoder,)))
            continue
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(4.6, 2.2), layout="constrained")
            for axes, name, label in zip(
                figure.subplots(1, 2), ("loss", "top1"), ("training loss, nats", "top-1, %"), strict=True
            ):
                for probe in probes:
                    _curve(axes, looks(inputs.heads)[probe.head], probe, name)
                everything = [value for curve in curves for value in getattr(curve, name)]
                margin = 0.05 * (max(everything) - min(everything)) or 1.0
                axes.set_ylim(min(everything) - margin, max(everything) + margin)
                axes.set_xlabel("epoch")
                axes.set_ylabel(label)
                axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
                axes.grid(axis="y", color=INK, alpha=0.13, linewidth=0.6)
            alt = f"Training curves of {encoder}. " + " ".join(_ended(probe) for probe in probes)
            index = inputs.encoders.index(encoder)
            drawings.append(Drawing(encoder, "", _svg(figure, f"curves{index}", looks(inputs.heads)), alt))
    return drawings


def _curve(axes: Axes, look: Look, probe: Probe, name: str) -> None:
    if probe.curve is not None:
        values = getattr(probe.curve, name)
        every = max(1, len(values) // 6)
        colour = _stand_in(look)
        axes.plot(
            probe.curve.epochs, values, color=colour, linestyle=look.dash, marker=look.marker, markevery=every, linewidth=1.3
        )


def _ended(probe: Probe) -> str:
    curve = probe.curve
    assert curve is not None
    return f"{title(probe.head)}: loss {curve.loss[-1]:.2f}, top-1 {curve.top1[-1]:.1f} % after {curve.epochs[-1]} epochs."


def _stand_in(look: Look) -> str:
    """A colour that matplotlib can write, and `_svg` replaces by the CSS variable."""
    number = look.colour.removeprefix("var(--series-").removesuffix(")")
    return f"#0a00{255 if number == 'random' else int(number):02x}"


def _svg(figure: Figure, name: str, used: dict[str, Look]) -> str:
    """The figure as an <svg> to stand in HTML: ids that are unique on the page, no namespaces, dates or fixed size.

    It holds no name that a user chose; those stand in the legend and in the label, which the template escapes.
    """
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    referenced = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in referenced else "", text)
    text = re.sub(r"(url\(|href=\")#", rf"\1#{name}-", text)
    for look in used.values():
        text = text.replace(_stand_in(look), look.colour)
    text = text.replace(INK, "currentColor")
    return text.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
