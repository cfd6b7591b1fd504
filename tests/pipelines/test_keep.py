"""What is kept of runs, and that the parameters of the one over all of CIFAR-10 are of today's program."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipelines.parameters.heads import plans_and_run
from probe.result_files import DESCRIPTION, METRICS
from quickstart.keep import DRAW, MAIN_HEADS, keep, kept, main, tables
from store import BeyondClsError
from tests.pipelines.report.everything import write_geometry
from tests.pipelines.report.written import write_attention, write_correct, write_probe

RESULT = (METRICS, DESCRIPTION)
ROOT = Path(__file__).resolve().parents[2]
FULL, DATA = ROOT / "quickstart/full", "cifar10-60000"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three encoders with the main heads, of which one knows its images, and one more head on one of them."""
    for encoder, cls, abmilp in (("mae", 50.0, 57.0), ("mocov3", 60.0, 60.5), ("random", 34.0, 36.0)):
        for head, top1 in zip(MAIN_HEADS, (cls, cls + 1, abmilp), strict=True):
            write_probe(tmp_path / "run/probes" / DATA, encoder, head, top1)
        write_attention(tmp_path / "run/attention" / DATA, encoder, "d")
    for head, rates in (("ep", (0.5, 0.6)), ("cls-average", (0.4, 0.5))):
        folder = write_probe(tmp_path / "run/studies" / DATA / "aggregators", "mae", head, 56.0)
        write_correct(folder, np.linspace(0, 1, 200)[None] < np.array(rates)[:, None])
    return tmp_path / "run"


def test_metrics_statistics_and_main_heads_by_image_are_kept_and_nothing_else(run: Path, tmp_path: Path) -> None:
    main(run, DATA, tmp_path / "out", studies=True)
    files = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    heads = [f"probes/{DATA}/{e}/{h}/{f}" for e in ("mae", "mocov3", "random") for h in MAIN_HEADS for f in RESULT]
    kinds = ("heads.csv", "statistics.csv", "summary.json")
    attention = [f"attention/{DATA}/{e}/{f}" for e in ("mae", "mocov3", "random") for f in kinds]
    of_studies = [f"probes/{DATA}/mae/{head}/{f}" for head in ("ep", "cls-average") for f in RESULT]
    of_studies.append(f"probes/{DATA}/mae/cls-average/trained/correct.npz")
    assert files == {*heads, *of_studies, *attention, "tables.md"}
    assert "| mae | masked | AbMILP | 57.0 ± 0.5 | +7.0 ± 0.7 | 193 |" in (tmp_path / "out/tables.md").read_text()


def test_other_draws_of_a_twin_are_further_seeds(run: Path, tmp_path: Path) -> None:
    right = np.random.default_rng(0).random((2, 3, 2, 40)) < 0.4  # trained and converged, of three draws and two seeds
    for draw, name in enumerate(("random", "random-1", "random-2")):
        folder = write_probe(run / "probes" / DATA, f"quickstart-{name}", "cls", 0.0)
        write_correct(folder, right[0, draw], converged=right[1, draw])
    keep(run, DATA, tmp_path / "out")
    inputs = kept(tmp_path / "out", DATA)
    assert {e for e in inputs.encoders if e.startswith("quickstart")} == {"quickstart-random"}
    probe = inputs.probes["quickstart-random", "cls"]
    assert probe.measures["converged_top1"].values == pytest.approx(100 * right[1].mean(-1).ravel())
    assert (probe.recorded["draws"], len(probe.seeds)) == (3, 6)
    with np.load(tmp_path / "out/probes" / DATA / "quickstart-random/cls/trained/correct.npz") as file:
        assert np.array_equal(file["correct"], right[0].reshape(6, 40))


@pytest.mark.parametrize("names", [{"data": f"../probes/{DATA}"}, {"data": DATA, "only": "../mae"}])
def test_names_are_no_paths(names: dict[str, str], run: Path, tmp_path: Path) -> None:
    keep(run, DATA, tmp_path / "out")
    before = sorted((tmp_path / "out").rglob("*"))
    with pytest.raises(BeyondClsError, match=r"has the name '[^']*[.][.].*, which becomes part of paths"):
        keep(run, out=tmp_path / "out", **names)
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_keeping_again_replaces_what_is_gone_and_nothing_measured_replaces_nothing(run: Path, tmp_path: Path) -> None:
    keep(run, DATA, tmp_path / "out", studies=True)
    with pytest.raises(BeyondClsError, match=rf"no metrics under .*empty/probes/{DATA}, expected"):
        keep(tmp_path / "empty", DATA, tmp_path / "out")
    assert len(kept(tmp_path / "out", DATA).probes) == 11
    shutil.rmtree(run / "studies")
    keep(run, DATA, tmp_path / "out", studies=True)
    assert "ep" not in kept(tmp_path / "out", DATA).heads


def test_one_encoder_is_kept_beside_the_others(run: Path, tmp_path: Path) -> None:
    keep(run, DATA, tmp_path / "out", studies=True)
    shutil.rmtree(run)
    write_geometry(run / "geometry" / DATA, "mae", ("cls", 1, 30.0))
    (run / "geometry" / DATA / "mae/block5.svg").write_text("")
    for encoder in ("mae", "mocov3"):
        write_probe(run / "probes" / DATA, encoder, "cls", 20.0)
        write_probe(run / "studies" / DATA / "aggregators", encoder, "max", 10.0)
        write_attention(run / "attention" / DATA, encoder, "e")
    main(run, DATA, tmp_path / "out", studies=True, encoder="mae")
    inputs = kept(tmp_path / "out", DATA)
    assert {head for encoder, head in inputs.probes if encoder == "mae"} == {"cls", "max"}
    assert {head for encoder, head in inputs.probes if encoder == "mocov3"} == set(MAIN_HEADS)
    assert inputs.probes["mocov3", "cls"].measures["top1"].mean == 60
    assert {name: a.data for name, a in inputs.attention.items()} == {"mae": "e", "mocov3": "d", "random": "d"}
    assert sorted(p.name for p in (tmp_path / "out/geometry" / DATA / "mae").iterdir()) == sorted(RESULT), "no pictures"
    assert "### Vectors of the deepest block" in (tmp_path / "out/tables.md").read_text()
    with pytest.raises(BeyondClsError, match=rf"no metrics under .*run/probes/{DATA}/ibot, expected what"):
        keep(run, DATA, tmp_path / "out", only="ibot")


def test_a_study_with_the_main_heads_names_stays_behind_or_is_refused(run: Path, tmp_path: Path) -> None:
    write_probe(run / "studies" / DATA / "other", "mae", "abmilp", 56.0)
    main(run, DATA, tmp_path / "out")
    assert kept(tmp_path / "out", DATA).heads == ["cls", "average", "abmilp"]
    with pytest.raises(BeyondClsError, match=r"abmilp on mae is in .* and in .*, expected it once; rename one head"):
        keep(run, DATA, tmp_path / "out", studies=True)


def test_the_parameters_are_of_the_encoders_that_are_here() -> None:
    params = yaml.safe_load((FULL / "params.yaml").read_text())
    quickstart = yaml.safe_load((ROOT / "params.yaml").read_text())["encoders"]
    fine_tuned = json.loads((ROOT / "quickstart/encoders/mae-ft.json").read_text())["weights"]
    entries = {name: {n: value for n, value in entry.items() if n != "seeds"} for name, entry in params["encoders"].items()}
    draws = [entries.pop(name) for name in params["encoders"] if DRAW.fullmatch(name)]
    assert entries == quickstart | {"quickstart-mae-ft": {"weights": fine_tuned}}
    assert sorted(draw["random_seed"] for draw in draws) == [1, 2, 3, 4]
    assert params["datasets"] == [DATA]
    main_plans, _ = plans_and_run([*params["cls_heads"], *params["heads"]], params, {}, {})
    assert set(main_plans) == set(MAIN_HEADS)
    recipes = [plan.recipe for plan in main_plans.values()]
    assert {(recipe.epochs, recipe.batch_size, recipe.momentum) for recipe in recipes} == {(90, 1024, 0.0)}


TUNED = tuple(f"quickstart-{name}" for name in ("mae", "mae-ft", "mocov3", "random"))  # main heads have own settings


@pytest.mark.parametrize(
    ("folder", "file", "counts"),
    [(FULL, FULL, (50_000, 10_000, 1024)), (ROOT / "quickstart/results", ROOT, (5000, 1000, 256))],
)
def test_what_is_kept_is_of_all_heads_images_and_seeds(folder: Path, file: Path, counts: tuple[int, int, int]) -> None:
    params = yaml.safe_load((file / "params.yaml").read_text())
    measured = kept(folder, *params["datasets"])
    entries = params["cls_heads"] | params["heads"]
    expected = {(encoder, head) for encoder in params["encoders"] if not DRAW.fullmatch(encoder) for head in entries}
    if folder == FULL:
        expected |= {(study["encoder"], head) for study in params["studies"].values() for head in study["heads"]}
    assert set(measured.probes) == expected
    for (encoder, head), probe in measured.probes.items():
        assert (probe.n_training, probe.n_test, probe.recipe["batch_size"]) == counts
        if encoder not in TUNED or head not in entries | params["studies"].get("both-mae", {"heads": {}})["heads"]:
            assert probe.seeds == (0, 1, 2)
            continue
        assert set(probe.seeds) == set(range(3 if folder == FULL and encoder == "quickstart-random" else 12))
        n_draws = 5 if encoder == "quickstart-random" and head in entries else 1  # of the twin's weights
        assert len(probe.seeds) == n_draws * len(set(probe.seeds))
        assert "converged_top1" in probe.measures
        if head in entries:  # nothing that was chosen is at the edge of its grid, but for a decay of 0
            assert probe.recipe["base_lr"] in entries[head]["base_lrs"][1:-1]
            assert probe.recipe["weight_decay"] in entries[head]["weight_decays"][:-1]


@pytest.mark.parametrize(("out", "data"), [("full", DATA), ("results", "cifar10")])
def test_the_tables_are_of_what_is_kept(out: str, data: str) -> None:
    """`python -m quickstart.readme` writes them."""
    folder = ROOT / "quickstart" / out
    assert (folder / "tables.md").read_text() == tables(kept(folder, data), data)
