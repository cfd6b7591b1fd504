from dataclasses import replace

from pipelines.report.collect import Probe
from pipelines.report.content import Figures, Table
from pipelines.report.sections.views import best_stored, enough, finding, section
from tests.pipelines.report.studied import inputs, studied


def shown(crops: int | str, top1: float, aggregator: str = "cls", encoder: str = "mae") -> Probe:
    return replace(studied(encoder, f"{aggregator}-{crops}", top1, aggregator), crops=crops)


STUDY = (
    *(shown(n, top1) for n, top1 in ((0, 40.0), (16, 46.0), (2, 45.6), (1, 44.0), ("fresh", 46.0))),
    *(shown(n, top1, "abmilp") for n, top1 in ((0, 50.0), (16, 51.0), ("fresh", 52.0))),
    shown(0, 30.0, encoder="<b>other"),
)


def test_nothing_without_the_study_or_where_crops_are_not_known():
    assert section(inputs("variants", *STUDY)) is None
    assert section(inputs("views", studied("mae", "cls", 40.0))) is None


def test_accuracy_against_the_number_of_crops():
    _, finding, figures, table = section(inputs("views", *STUDY)).blocks
    assert finding.text.startswith(
        "On <b>other, fresh crops or the evaluation crop alone were not measured, so there is nothing to compare with. "
        "On mae, [cls] gains +6.0 points from fresh crops, and 2 crops come within 0.5 points of them; "
        "AbMILP gains +2.0 points from fresh crops, and no stored number comes within 0.5 points of them."
    )
    assert isinstance(figures, Figures)
    other, mae = figures.figures
    assert [figure.name for figure in (other, mae)] == ["views-b-other", "views-mae"]
    assert "[cls]: 40.0 ± 0.5 % with no crops, 44.0 ± 0.5 % with 1 crop, 45.6 ± 0.5 % with 2 crops" in mae.alt
    assert all(word in mae.svg for word in ("none", "fresh", "16"))
    assert "<b>" not in mae.svg + other.svg
    assert isinstance(table, Table)
    assert [column.title for column in table.columns[2:]] == ["no crops", "1 crop", "2 crops", "16 crops", "fresh crops"]
    assert [[cell.text for cell in row.cells] for row in table.rows][1:] == [
        ["mae", "[cls]", "40.0 ± 0.5", "44.0 ± 0.5", "45.6 ± 0.5", "46.0 ± 0.5", "46.0 ± 0.5"],
        ["mae", "AbMILP", "50.0 ± 0.5", "–", "–", "51.0 ± 0.5", "52.0 ± 0.5"],
    ]


def test_crops_that_do_harm():
    probes = [shown(0, 40.0), shown(1, 30.0), shown("fresh", 39.5)]
    assert finding("it", probes) == "On it, [cls] does best without crops, and loses 0.5 points with fresh ones."


def test_best_stored_is_clearly_better_than_none():
    probes = [shown(0, 40.0), shown(2, 42.0), shown(4, 41.9), shown(0, 40.0, "abmilp"), shown(4, 41.0, "abmilp")]
    (n, gained), (none, _) = best_stored([*probes, shown("fresh", 50.0)]).values()  # spreads of 0.5 each: 1.4 is clear
    assert (n, round(gained.mean, 1), none) == (2, 2.0, 0)


def test_enough_is_where_more_does_not_fall_behind_again():
    crops = {n: shown(n, top1) for n, top1 in ((0, 45.9), (1, 45.0), (2, 45.5), (4, 47.0), ("fresh", 46.0))}
    assert enough(crops) == 2
    assert enough(crops | {4: shown(4, 45.4)}) is None
