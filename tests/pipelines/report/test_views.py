from dataclasses import replace

from pipelines.report.measured import Probe
from pipelines.report.sections.views import best_stored, enough, finding, section
from tests.pipelines.report.parts import figures, shown, tables, words
from tests.pipelines.report.studied import inputs, studied


def of_crops(crops: int | str, top1: float, aggregator: str = "cls", encoder: str = "mae") -> Probe:
    return replace(studied(encoder, f"{aggregator}-{crops}", top1, aggregator), crops=crops)


STUDY = (
    *(of_crops(n, top1) for n, top1 in ((0, 40.0), (16, 46.0), (2, 45.6), (1, 44.0), ("fresh", 46.0))),
    *(of_crops(n, top1, "abmilp") for n, top1 in ((0, 50.0), (16, 51.0), ("fresh", 52.0))),
    of_crops(0, 30.0, encoder="<b>other"),
)


def test_nothing_without_the_study_or_where_crops_are_not_known():
    assert section(inputs("variants", *STUDY)) is None
    assert section(inputs("views", studied("mae", "cls", 40.0))) is None


def test_accuracy_against_the_number_of_crops():
    result = section(inputs("views", *STUDY))
    (finding,) = words(result, "finding")
    assert finding.startswith(
        "On <b>other, fresh crops or the evaluation crop alone were not measured, so there is nothing to compare. "
        "On mae, [cls] gains +6.0 points from fresh crops, and 2 crops come within 0.5 points of them; "
        "AbMILP gains +2.0 points from fresh crops, and no stored number comes within 0.5 points of them."
    )
    other, mae = figures(result)
    assert [figure.name for figure in (other, mae)] == ["views-b-other", "views-mae"]
    assert "[cls]: 40.0 ± 0.5 % with no crops, 44.0 ± 0.5 % with 1 crop, 45.6 ± 0.5 % with 2 crops" in mae.alt
    assert all(word in mae.svg for word in ("none", "fresh", "16"))
    table = tables(result)["views"]
    assert [column.title for column in table.columns[2:]] == ["no crops", "1 crop", "2 crops", "16 crops", "fresh crops"]
    assert shown(table)[1:] == [
        ["mae", "[cls]", "40.0 ± 0.5", "44.0 ± 0.5", "45.6 ± 0.5", "46.0 ± 0.5", "46.0 ± 0.5"],
        ["mae", "AbMILP", "50.0 ± 0.5", "–", "–", "51.0 ± 0.5", "52.0 ± 0.5"],
    ]


def test_crops_that_do_harm():
    probes = [of_crops(0, 40.0), of_crops(1, 30.0), of_crops("fresh", 39.5)]
    assert finding("it", probes) == "On it, [cls] does best without crops, and loses 0.5 points with fresh ones."


def test_best_stored_is_clearly_better_than_none():
    probes = [of_crops(0, 40.0), of_crops(2, 42.0), of_crops(4, 41.9), of_crops(0, 40.0, "abmilp"), of_crops(4, 41.0, "abmilp")]
    (n, gained), (none, _) = best_stored([*probes, of_crops("fresh", 50.0)]).values()  # spreads of 0.5 each: 1.4 is clear
    assert (n, round(gained.mean, 1), none) == (2, 2.0, 0)


def test_enough_is_where_more_does_not_fall_behind_again():
    crops = {n: of_crops(n, top1) for n, top1 in ((0, 45.9), (1, 45.0), (2, 45.5), (4, 47.0), ("fresh", 46.0))}
    assert enough(crops) == 2
    assert enough(crops | {4: of_crops(4, 45.4)}) is None
