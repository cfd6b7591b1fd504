import re
import shutil
from pathlib import Path

from pipelines.report.collect import collect
from pipelines.report.figures import curve_figures, looks, statistics_figures
from tests.pipelines.report.written import write_all


def test_four_statistics_with_units_and_all_encoders(tmp_path: Path):
    paths = write_all(tmp_path)
    drawings = statistics_figures(collect(paths["probes"], paths["attention"]))
    assert [d.caption for d in drawings] == [f"As Fig. {n} of the paper." for n in (3, 4, 5, 6)]
    for drawing, entropy in zip(drawings, (False, True, False, True), strict=True):
        assert ("entropy, nats" in drawing.svg) is entropy
        assert ("ln 4 = 1.39" in drawing.svg) is entropy
        assert "var(--series-0)" in drawing.svg
        assert "var(--series-random)" in drawing.svg
        assert "mae: 0.50 in the first block, 0.75 in the last" in drawing.alt
        assert drawing.missing == ()


def test_svg_stands_alone_in_a_page(tmp_path: Path):
    paths = write_all(tmp_path)
    inputs = collect(paths["probes"], paths["attention"])
    svgs = [d.svg for d in statistics_figures(inputs) + curve_figures(inputs)]
    ids = [name for svg in svgs for name in re.findall(r' id="([^"]+)"', svg)]
    assert len(ids) == len(set(ids)) > 0
    for svg in svgs:
        assert svg.startswith("<svg")
        assert "http" not in svg
        assert "#0a0" not in svg  # every stand-in became a variable
        assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", svg)) <= set(re.findall(r' id="([^"]+)"', svg))


def test_missing_attention_is_named(tmp_path: Path):
    paths = write_all(tmp_path)
    shutil.rmtree(paths["attention"] / "random")
    (drawing, *_) = statistics_figures(collect(paths["probes"], paths["attention"]))
    assert drawing.missing == ("random",)
    assert "var(--series-random)" not in drawing.svg
    shutil.rmtree(paths["attention"])
    assert [d.svg for d in statistics_figures(collect(paths["probes"], paths["attention"]))] == [""] * 4


def test_curves_of_each_encoder(tmp_path: Path):
    paths = write_all(tmp_path)
    for head in ("cls", "average", "abmilp"):
        (paths["probes"] / "random" / head / "curves.csv").unlink()
    mae, random = curve_figures(collect(paths["probes"], paths["attention"]))
    assert "AbMILP: loss 2.00, top-1 21.0 % after 2 epochs." in mae.alt
    assert (random.svg, random.missing) == ("", ("random",))


def test_looks_differ_and_random_is_grey():
    names = [f"encoder{i}" for i in range(12)] + ["a-random"]
    found = looks(names)
    assert len({(look.colour, look.dash) for look in found.values()}) == len(names)
    assert found["a-random"].colour == "var(--series-random)"
