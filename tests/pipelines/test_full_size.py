"""What is kept of a run over all of CIFAR-10, and that its parameters are of today's program."""

import json
import shutil
from math import log
from pathlib import Path

import pytest
import yaml

from pipelines.heads import plans_and_run
from pipelines.quickstart.full_size import DATA, MAIN_HEADS, keep, kept, main, main_table, tables
from pipelines.report.collect import Inputs
from pipelines.report.lead import lead
from pipelines.report.tables import difference, plus_minus, signed
from pipelines.studies import params_of_study
from probe.aggregators import AGGREGATORS
from probe.timing import Timing, write_timing
from store import BeyondClsError
from tests.pipelines.report.written import write_attention, write_probe

ROOT = Path(__file__).resolve().parents[2]
FULL = ROOT / "quickstart/full"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three encoders with the main heads, and one more head on one of them."""
    for encoder, cls, abmilp in (("mae", 50.0, 57.0), ("mocov3", 60.0, 60.5), ("random", 34.0, 36.0)):
        for head, top1 in zip(MAIN_HEADS, (cls, cls + 1, abmilp), strict=True):
            write_probe(tmp_path / "run/probes" / DATA, encoder, head, top1)
        write_attention(tmp_path / "run/attention" / DATA, encoder, "d")
    write_probe(tmp_path / "run/studies/aggregators", "mae", "ep", 56.0)
    return tmp_path / "run"


def test_metrics_and_statistics_are_kept_and_nothing_else(run: Path, tmp_path: Path) -> None:
    write_timing(run / "studies/aggregators/mae/ep", Timing(0.5, 64, "cpu", 1))
    main(run, tmp_path / "out")
    assert kept(tmp_path / "out").probes["mae", "ep"].timing["ms_per_image"] == 0.5
    found = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    heads = [f"probes/{DATA}/{e}/{h}/metrics.json" for e in ("mae", "mocov3", "random") for h in MAIN_HEADS]
    attention = [
        f"attention/{DATA}/{e}/{f}"
        for e in ("mae", "mocov3", "random")
        for f in ("heads.csv", "statistics.csv", "summary.json")
    ]
    assert found == {*heads, *(f"probes/{DATA}/mae/ep/{name}.json" for name in ("metrics", "timing")), *attention, "tables.md"}
    text = (tmp_path / "out/tables.md").read_text()
    assert "+6.5 ± 1.0 points more on mae than on mocov3, 6.5 standard deviations" in text
    assert "| AbMILP | **57.0 ± 0.5** | 60.5 ± 0.5 | **36.0 ± 0.5** |" in text
    assert "| ep | 56.0 ± 0.5 | – | – |" in text
    assert "| mocov3 | 1 | 0.750 ± 0.125 |" in text


def test_the_main_table_has_the_main_heads(run: Path, tmp_path: Path) -> None:
    keep(run, tmp_path / "out")
    table = main_table(kept(tmp_path / "out"))
    assert [column.name for column in table.columns][:5] == ["encoder", *MAIN_HEADS, "abmilp_minus_cls"]
    assert [cell.text for cell in table.rows[0].cells][:5] == ["mae", "50.0 ± 0.5", "51.0 ± 0.5", "57.0 ± 0.5", "+7.0 ± 0.7"]


def test_what_is_gone_is_not_kept(run: Path, tmp_path: Path) -> None:
    keep(run, tmp_path / "out")
    shutil.rmtree(run / "studies")
    keep(run, tmp_path / "out")
    assert "ep" not in kept(tmp_path / "out").heads


def test_two_of_one_name_are_refused(run: Path, tmp_path: Path) -> None:
    write_probe(run / "studies/other", "mae", "abmilp", 56.0)
    with pytest.raises(BeyondClsError, match=r"abmilp on mae is in .* and in .*, expected it once; rename one head"):
        keep(run, tmp_path / "out")


def test_nothing_measured_is_an_error_and_leaves_what_was_kept(run: Path, tmp_path: Path) -> None:
    keep(run, tmp_path / "out")
    with pytest.raises(
        BeyondClsError, match=rf"no metrics under .*empty/probes/{DATA}, expected what `dvc repro probe` writes"
    ):
        keep(tmp_path / "empty", tmp_path / "out")
    assert len(kept(tmp_path / "out").probes) == 10


def test_the_parameters_are_of_the_encoders_that_are_here_and_cover_all_aggregators() -> None:
    params = yaml.safe_load((FULL / "params.yaml").read_text())
    assert params["encoders"] == yaml.safe_load((ROOT / "params.yaml").read_text())["encoders"]
    assert params["datasets"] == [DATA]
    main_plans, _ = plans_and_run([*params["cls_heads"], *params["heads"]], params, {}, {})
    assert set(main_plans) == set(MAIN_HEADS)
    recipes = {json.dumps([plan.recipe.epochs, plan.recipe.batch_size, plan.recipe.momentum]) for plan in main_plans.values()}
    assert recipes == {"[90, 1024, 0.0]"}
    of_studies: dict[str, set[str]] = {}
    for study in params["studies"]:
        plans, _ = plans_and_run(list(params["studies"][study]["heads"]), params_of_study(params, study), {}, {})
        assert all(plan.seeds == (0, 1, 2) for plan in plans.values())
        of_studies.setdefault(params["studies"][study]["encoder"], set()).update(p.head.aggregator for p in plans.values())
    in_main = {plan.head.aggregator for plan in main_plans.values()}
    assert of_studies["quickstart-random"] < of_studies["quickstart-mae"]
    assert of_studies["quickstart-mae"] == of_studies["quickstart-mocov3"] == set(AGGREGATORS) - in_main


@pytest.fixture(scope="module")
def measured() -> Inputs:
    return kept(FULL)


def test_what_is_kept_is_of_all_heads_and_images_and_three_seeds(measured: Inputs) -> None:
    params = yaml.safe_load((FULL / "params.yaml").read_text())
    main_heads = [*params["cls_heads"], *params["heads"]]
    of_main = {(encoder, head) for encoder in params["encoders"] for head in main_heads}
    of_studies = {(study["encoder"], head) for study in params["studies"].values() for head in study["heads"]}
    assert set(measured.probes) == of_main | of_studies
    assert {(p.n_training, p.n_test, p.seeds, p.recipe["batch_size"]) for p in measured.probes.values()} == {
        (50_000, 10_000, (0, 1, 2), 1024)
    }
    assert {(a.n_images, a.encoder in params["encoders"]) for a in measured.attention.values()} == {(10_000, True)}


def test_abmilp_gains_more_on_the_masked_encoder_by_more_than_three_standard_deviations(measured: Inputs) -> None:
    found = lead(measured.probes)
    assert found is not None
    assert (found.masked, found.joint) == ("quickstart-mae", "quickstart-mocov3")
    assert found.deviations is not None
    assert found.deviations > 3


def test_the_tables_are_of_what_is_kept(measured: Inputs) -> None:
    assert (FULL / "tables.md").read_text() == tables(measured), "python -m pipelines.quickstart.full_size writes them"


def test_readme_says_what_is_kept(measured: Inputs) -> None:
    readme = (ROOT / "README.md").read_text().split("<!-- all of CIFAR-10 -->")[1]
    for encoder, called in (
        ("quickstart-mae", "masked autoencoding"),
        ("quickstart-mocov3", "contrast"),
        ("quickstart-random", "random twin"),
    ):
        (line,) = (line for line in readme.splitlines() if line.startswith(f"| {called} |"))
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")][1:]
        heads = ("cls", "average", "cls-average", "abmilp")
        assert cells[:4] == [plus_minus(measured.probes[encoder, head].measures["top1"], 2) for head in heads]
        gain = difference(measured.probes[encoder, "abmilp"], measured.probes[encoder, "cls"])
        assert gain is not None
        assert cells[4] == signed(gain.mean)
        best = max(heads, key=lambda head: measured.probes[encoder, head].measures["top1"].mean)
        assert f"**{cells[heads.index(best)]}**" in line


def test_readme_tells_what_was_measured(measured: Inputs) -> None:
    """Figures in its text; those of its table are above."""
    mae, mocov3, random = "quickstart-mae", "quickstart-mocov3", "quickstart-random"

    def top1(encoder: str, head: str) -> float:
        return measured.probes[encoder, head].measures["top1"].mean

    def last(encoder: str, statistic: str) -> float:
        return measured.attention[encoder].statistics[statistic][-1][0]

    def seconds(name: str) -> str:
        return f"{json.loads((ROOT / f'quickstart/encoders/{name}.json').read_text())['seconds']:,} s"

    patches, others, cls = (
        [last(e, name) for e in (mae, mocov3)] for name in ("patch_self", "patch_patch_entropy", "cls_patch_entropy")
    )
    kept_by_cls = [round(100 * mean) for mean, _ in measured.attention[mae].statistics["cls_self"]]
    average = top1(mocov3, "average") - top1(mocov3, "cls")
    found = lead(measured.probes)
    assert found is not None
    assert found.deviations is not None
    text = " ".join((ROOT / "README.md").read_text().split("<!-- all of CIFAR-10 -->")[1].split("\n## ")[0].split())
    for said in (
        f"AbMILP gains {found.points.mean:.1f} ± {found.points.std:.1f} points more on the masked model: "
        f"{int(found.deviations)} times the spread over seeds",
        f"attend to themselves more ({patches[0]:.2f} against {patches[1]:.2f} of",
        f"more selectively ({others[0]:.1f} against {others[1]:.1f} nats",
        f"more evenly ({cls[0]:.1f} against {cls[1]:.1f} nats of at most {log(64):.1f},",
        f"one head is near AbMILP ({top1(mae, 'ap-1'):.1f}, and {top1(mocov3, 'ap-1'):.1f} on the contrasted model)",
        f"with twelve far ahead ({top1(mae, 'ap-12'):.1f} and {top1(mocov3, 'ap-12'):.1f}, Table 7)",
        f"keeps {min(kept_by_cls)} to {max(kept_by_cls)} % of its attention for itself",
        f"(average: {signed(average)})",
        f"the central patches alone do no worse ({top1(random, 'central'):.1f})",
        f"{seconds('mae')} ([MAE](quickstart/encoders/mae.md))",
        f"{seconds('mocov3')} ([MoCo v3](quickstart/encoders/mocov3.md))",
    ):
        assert said in text
    of_the_image = ("central-attention", "cls-attention", "joined-attention", "lowest-entropy-head", "k-means", "norm", "pca")
    assert all(top1(encoder, head) < top1(encoder, "abmilp") for encoder in (mae, mocov3) for head in of_the_image)
