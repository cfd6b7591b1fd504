from pipelines.report.measured import Probe
from pipelines.report.sections.views import section
from tests.pipelines.report.written import inputs, shown, studied, tables


def of_crops(crops: int | str, top1: float, aggregator: str = "cls", encoder: str = "mae") -> Probe:
    return Probe(studied(encoder, f"{aggregator}-{crops}", top1, aggregator), crops=crops)


STUDY = (
    *(of_crops(n, top1) for n, top1 in ((0, 40.0), (16, 46.0), (2, 45.6), ("fresh", 46.0))),
    *(of_crops(n, top1, "abmilp") for n, top1 in ((0, 50.0), ("fresh", 52.0))),
    of_crops(0, 30.0, encoder="<b>other"),
)


def test_accuracy_against_the_number_of_crops():
    assert section(inputs("views", studied("mae", "cls", 40.0))) is None, "where crops are not known"
    result = section(inputs("views", *STUDY))
    assert shown(tables(result)["views-gains"], slice(4)) == [
        ["mae", "[cls]", "2 crops", "+5.6 ± 0.7"],
        ["mae", "[cls]", "16 crops", "+6.0 ± 0.7"],
        ["mae", "[cls]", "fresh crops", "+6.0 ± 0.7"],
        ["mae", "AbMILP", "fresh crops", "+2.0 ± 0.7"],
    ]
    table = tables(result)["views"]
    assert [column.title for column in table.columns[2:]] == ["no crops", "2 crops", "16 crops", "fresh crops"]
    assert shown(table)[1:] == [
        ["mae", "[cls]", "40.0 ± 0.5", "45.6 ± 0.5", "46.0 ± 0.5", "46.0 ± 0.5"],
        ["mae", "AbMILP", "50.0 ± 0.5", "–", "–", "52.0 ± 0.5"],
    ]
