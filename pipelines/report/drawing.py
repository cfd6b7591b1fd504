"""Plots as content: inline in the page's colours, light or dark, and as files in real ones on white."""

import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pipelines.report import content
from pipelines.report.content import Look
from pipelines.report.measured import Measure
from pipelines.report.tables import title as titled

N_COLOURS = 6  # --series-0 … --series-5 of page.css; --series-random is grey
DASHES = ("solid", "dashdot", "dotted")  # of the first, second and third round through the colours; random ones are dashed
MARKERS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"))
DPI = 200  # of PNG files
# Metadata by format that differ from day to day, or from version to version of matplotlib.
DATED = {"svg": ("Date", "Creator", "Format", "Type"), "png": ("Software",), "pdf": ("CreationDate", "Creator", "Producer")}
WIDTH = (4.6, 32)  # inches of a plot of the usual size, and the rem that it takes on the page at most


@cache
def _colour_variables() -> dict[str, str]:
    """Colours of the light look by the names of their variables in page.css: `series-0` is "#0072b2"."""
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    light = style[: style.index("@media")]
    return {name: value.lower() for name, value in re.findall(r"--([\w-]+): (#\w{6});", light)}


INK = _colour_variables()["ink"]  # text and lines; the page's text colour where the plot is inline
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "beyondcls",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # one name, as each text of an SVG repeats it
    "font.size": 9,
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": INK,
    "grid.alpha": 0.13,
    "grid.linewidth": 0.6,
    "figure.constrained_layout.use": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}


def looks(names: list[str], random: Collection[str] = ()) -> dict[str, Look]:
    """Colour, dashes and marker of each name, in order; random encoders are grey and dashed. 18 names are distinguishable."""
    by_name, n = {}, 0
    for name in names:
        if name in random:
            by_name[name] = Look(name, "var(--series-random)", "dashed", "x", "×")
            continue
        turn = n // N_COLOURS
        marker, symbol = MARKERS[(n + turn) % len(MARKERS)]
        by_name[name] = Look(name, f"var(--series-{n % N_COLOURS})", DASHES[turn % len(DASHES)], marker, symbol)
        n += 1
    return by_name


def colour(look: Look) -> str:
    """What matplotlib draws a series with: the light look's colour. `drawn` puts the page's variable in its place."""
    return _colour_variables()[look.colour.removeprefix("var(--").removesuffix(")")]


def limits(measures: Iterable[Measure], margin: float = 0.05) -> tuple[float, float]:
    """Of an axis that has all means with their standard deviations, and a share of their range beyond."""
    low, high = zip(*((measure.mean - measure.std, measure.mean + measure.std) for measure in measures), strict=True)
    beyond = margin * (max(high) - min(low)) or 1.0
    return min(low) - beyond, max(high) + beyond


class Panel(NamedTuple):
    """A plot of series over one axis.

    Attributes:
        series: places, means and standard deviations (which may be missing), by names of looks.
        levels: horizontal lines, with what is written at them.
        whole: places are whole numbers.
    """

    series: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]
    xlabel: str
    ylabel: str
    ylim: tuple[float | None, float | None] = (None, None)
    levels: Sequence[tuple[float, str]] = ()
    whole: bool = True


def lines(
    name: str, title: str, caption: str, alt: str, panels: Sequence[Panel], by_name: Mapping[str, Look], height: float = 2.9
) -> content.Figure:
    """Panels side by side: a line for each series, with a band of one standard deviation. `height` is in inches."""
    with matplotlib.rc_context(STYLE):
        plot = Figure(figsize=(WIDTH[0], height))
        for axes, panel in zip(plot.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for key, (places, means, stds) in panel.series.items():
                look, middle = by_name[key], np.asarray(means)
                if len(stds):
                    axes.fill_between(places, middle - stds, middle + stds, color=colour(look), alpha=0.16, linewidth=0)
                every, dash = max(1, len(places) // 12), cast(Any, look.dash)
                axes.plot(places, means, color=colour(look), linestyle=dash, marker=look.marker, markevery=every)
            for level, text in panel.levels:
                axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), alpha=0.75)
                axes.annotate(text, (1, level), (0, 3), ("axes fraction", "data"), "offset points", ha="right")
            if panel.whole:
                axes.xaxis.set_major_locator(MaxNLocator("auto" if len(panels) == 1 else 4, integer=True))
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
            axes.set_ylim(*panel.ylim)
    used = dict.fromkeys(key for panel in panels for key in panel.series)
    return drawn(plot, name, title, caption, alt, [by_name[key] for key in used])


def drawn(figure: Figure, name: str, title: str, caption: str, alt: str, used: Iterable[Look] = ()) -> content.Figure:
    """A finished plot, inline and as files. Series of `used` take the page's colours, and are the legend of the files.

    Draw in `matplotlib.rc_context(STYLE)`, lines and text in INK (the default), series in `colour(look)`.
    """
    series = tuple(used)
    with matplotlib.rc_context(STYLE):
        figure.draw_without_rendering()  # lays it out once; each file would do so twice more
        figure.set_layout_engine(None)
        inline = _inline_svg(figure, name, series)
        if series:
            _draw_legend(figure, series)
    box = cache(lambda: figure.get_tightbbox().padded(0.1))  # inches; of all files the same

    def standalone(suffix: str) -> bytes:
        with matplotlib.rc_context({**STYLE, "svg.fonttype": "path", "pdf.fonttype": 42}):  # the same where the font is missing
            return _save(figure, suffix, facecolor="white", bbox_inches=box())

    return content.Figure(name, title, caption, inline, alt, {suffix: partial(standalone, suffix) for suffix in DATED})


def _save(figure: Figure, suffix: str, **options: Any) -> bytes:
    """The file's bytes: the same for the same plot, so without a date."""
    target = io.BytesIO()
    figure.savefig(target, format=suffix, dpi=DPI, metadata=dict.fromkeys(DATED[suffix]), **options)
    return target.getvalue()


def _draw_legend(figure: Figure, used: tuple[Look, ...]) -> None:
    """Below the plot, outside its area."""
    handles = []
    for look in used:
        dash: Any = look.dash
        handles.append(Line2D([], [], color=colour(look), linestyle=dash, marker=look.marker, label=titled(look.name)))
    columns = max(1, min(len(handles), 60 // max(len(look.name) + 8 for look in used)))
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, frameon=False, handlelength=3)


def _inline_svg(figure: Figure, name: str, used: tuple[Look, ...]) -> str:
    """The plot as an <svg> for use in HTML: unique ids, colours of the page, a class for each style (most bytes)."""
    root = ElementTree.fromstring(_save(figure, "svg", transparent=True))
    variables = {INK: "currentColor"} | {colour(look): look.colour for look in used}
    classes: dict[str, str] = {}
    for element in root.iter():
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        for key, value in attributes.items():
            value = re.sub(r"(\.\d\d)\d+", r"\1", value)
            value = re.sub(r"(url\(|^)#(?![0-9a-f]{6}\b)", rf"\1#{name}-", value)
            attributes[key] = re.sub(r"#[0-9a-f]{6}\b", lambda m: variables.get(m[0], m[0]), value)
        element.tag, element.tail = element.tag.rpartition("}")[2], None
        if attributes.pop("id", None) and element.tag not in ("g", "image"):  # which nothing refers to
            attributes["id"] = f"{name}-{element.get('id')}"
        if style := attributes.pop("style", ""):
            attributes["class"] = classes.setdefault(style, f"{name}-{len(classes)}")
        element.text, element.attrib = (element.text or "").strip(), attributes
    ElementTree.SubElement(root, "style").text = "".join(f".{one} {{{style}}}" for style, one in classes.items())
    widest = WIDTH[1] * figure.get_figwidth() / WIDTH[0]  # letters have one size on the page at any width of a plot
    root.attrib |= {"aria-hidden": "true", "focusable": "false", "style": f"max-width: {widest:.3g}rem"}
    return ElementTree.tostring(root, encoding="unicode")
