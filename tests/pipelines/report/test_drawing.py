import io
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.figure import Figure as Plot
from PIL import Image

from pipelines.report import drawing
from pipelines.report.content import Figure, Look
from pipelines.report.drawing import DPI, INK, STYLE, colour, drawn, looks

EVIL = "<script>alert(1)</script> $x$ & co"
LIKE_MARKUP = """--> font-family: x, id="y" xmlns="z" fill="url(#w)" x="1.2345", #0072b2"""


def plot(name: str = "a-plot", encoders: tuple[str, ...] = ("one", EVIL, "random"), title: str = EVIL) -> Figure:
    used = looks(list(encoders), ["random"]).values()
    with matplotlib.rc_context(STYLE):
        figure = Plot(figsize=(4, 2))
        axes = figure.subplots()
        for i, look in enumerate(used):
            axes.plot([0, 1], [i, i + 1], color=colour(look), linestyle=look.dash, marker=look.marker)  # type: ignore[arg-type]
        axes.set_title(title)
    return drawn(figure, name, "Title", "Caption.", "In words.", used)


def test_inline_svg_takes_the_pages_colours_and_is_small():
    svg = plot().svg
    assert not re.search(r' (d|x|y)="[^"]*\.\d{3}', svg), "two digits of a coordinate are enough"
    for variable in ("var(--series-0)", "var(--series-1)", "var(--series-random)", "currentColor"):
        assert variable in svg
    assert colour(looks(["one"])["one"]) not in svg
    assert INK not in svg
    assert not re.search(r"#000000|stroke: black", svg)


def test_inline_svg_fits_in_a_page_with_others():
    svgs = [plot("one").svg, plot("two").svg]
    ids = [name for svg in svgs for name in re.findall(r' id="([^"]+)"', svg)]
    assert len(ids) == len(set(ids)) > 0
    for svg in svgs:
        assert svg.startswith("<svg")
        assert "http" not in svg
        assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg)) <= set(re.findall(r' id="([^"]+)"', svg))


def test_text_is_no_markup_and_no_formula():
    texts = [
        element.text for title in (EVIL, LIKE_MARKUP) for element in ElementTree.fromstring(plot(title=title).svg).iter("text")
    ]
    assert {EVIL, LIKE_MARKUP} <= set(texts)


def test_files_stand_alone_in_real_colours_on_white():
    files = {suffix: drawn() for suffix, drawn in plot().files.items()}
    assert set(files) == {"svg", "png", "pdf"}
    assert files["pdf"].startswith(b"%PDF")
    svg = files["svg"].decode()
    assert svg.startswith("<?xml")
    assert "var(" not in svg
    assert "currentColor" not in svg
    assert colour(looks(["one"])["one"]) in svg
    assert "<script" not in svg
    picture = Image.open(io.BytesIO(files["png"]))
    assert round(picture.info["dpi"][0]) == DPI
    pixels = np.asarray(picture.convert("RGB"))
    assert picture.height > Image.open(io.BytesIO(plot(encoders=()).files["png"]())).height, "it has the legend"
    assert (pixels[0, 0] == 255).all()
    blue = tuple(bytes.fromhex(colour(looks(["one"])["one"])[1:]))
    assert (pixels == blue).all(-1).any()


def test_the_same_plot_gives_the_same_bytes():
    one, other = plot(), plot()
    assert one.svg == other.svg
    assert all(drawn() == other.files[suffix]() for suffix, drawn in one.files.items())


def test_looks_differ_and_random_is_grey():
    names = [f"random{i}" for i in range(18)] + ["drawn"]
    by_name = looks(names, ["drawn"])
    assert len({(look.colour, look.dash) for look in by_name.values()}) == len(names)
    assert [name for name, look in by_name.items() if look.colour == "var(--series-random)"] == ["drawn"]


def test_every_look_has_its_colour_in_both_schemes():
    style = Path(drawing.__file__).with_name("page.css").read_text()
    for name in (*(f"series-{i}" for i in range(6)), "series-random"):
        assert style.count(f"--{name}:") == 2, name
        assert re.fullmatch(r"#[0-9a-f]{6}", colour(Look("x", f"var(--{name})", "solid", "o", "●")))
