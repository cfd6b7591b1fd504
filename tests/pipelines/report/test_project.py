"""`beyondcls report` in the folder of a project finds what its pipeline has written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pipelines.report.collect import Examples, Folders, Inputs
from pipelines.report.content import Gallery, Text
from pipelines.report.galleries.images import of_params
from pipelines.report.project import project
from pipelines.report.sections import overlays
from store import BeyondClsError
from tests.pipelines.report.everything import average_precisions, write_detection, write_segmentation
from tests.pipelines.report.written import write_all, write_images, write_probe

PARAMS = {"data": "images", "datasets": ["one", "two"], "other_probes": "kept"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A project whose pipeline has run on one data set."""
    folder = tmp_path_factory.mktemp("project")
    made = write_all(folder / "made")
    for name in ("probes", "attention"):
        (folder / name).mkdir()
        made[name].rename(folder / name / "one")
    (folder / "images/one").mkdir(parents=True)
    made["data"].rename(folder / "images/one/test")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    return folder


@pytest.fixture
def report(monkeypatch, command):
    """Runs the command in a folder: status, output, errors; and `taken`: with what it would have written the page."""
    taken: list[Inputs] = []

    def report(folder: Path, *arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        monkeypatch.setattr("pipelines.report.sections.sections", lambda inputs, only: [])
        monkeypatch.setattr("pipelines.report.files.write", lambda out, inputs, sections: taken.append(inputs))
        status, out, err = command("report", "--n-examples", "1", *arguments)
        return status, out, " ".join(err.split())

    report.taken = taken
    return report


def copied(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "copy", ignore=shutil.ignore_patterns("report"))


def test_a_finished_project_needs_no_options(finished: Path, report):
    status, out, err = report(finished)
    assert status == 0, err
    assert "46.2 ± 0.5" in out
    (taken,) = report.taken
    assert set(taken.attention) == {"mae", "random"}
    assert taken.datasets == {}, "there is one"
    kinds = [type(block) for block in overlays.section(taken).blocks]
    assert kinds == [Text, Text, Gallery], "params.yaml names the images"


def test_several_data_sets_are_compared_and_one_is_the_main_one(finished: Path, tmp_path: Path, report):
    folder = copied(finished, tmp_path)
    write_probe(folder / "probes/two", "mae", "cls", 77.0)
    write_probe(folder / "kept/three", "mae", "cls", 88.0)
    assert "46.2 ± 0.5" in report(folder)[1]
    assert "77.0 ± 0.5" in report(folder, "--dataset", "two")[1]
    of_one, of_two = report.taken
    assert set(of_one.datasets) == set(of_two.datasets) == {"one", "two", "three"}
    assert (set(of_one.attention), set(of_two.attention)) == ({"mae", "random"}, set())
    (shown,) = overlays.section(of_two).blocks
    assert "those of params.yaml are not here" in shown.items[0]


def test_what_is_named_goes_before_what_the_project_has(finished: Path, tmp_path: Path, report):
    write_probe(tmp_path / "mine", "other", "cls", 12.0)
    assert "12.0 ± 0.5" in report(finished, "--probes", tmp_path / "mine")[1]
    assert report(finished, "--attention", "another", "--split", "train", "--datasets", "sets")[0] == 0
    alone, changed = report.taken
    assert alone.folders == Folders(tmp_path / "mine", dataset="mine")  # what the project has is of other probes
    assert changed.folders == replace(project(Path()), attention=Path("another"), split="train", datasets=(Path("sets"),))
    assert report(finished, "--probes", tmp_path / "mine", "--dataset", "one")[0] == 0
    assert report.taken[-1].folders == Folders(tmp_path / "mine", dataset="one")


def test_what_is_shown_can_be_chosen(finished: Path, report):
    for options in (("--image", "003", "--image", "005"), ("--draw", "4"), ("--encoder", "random")):
        assert report(finished, *options)[0] == 0
    of_ids, drawn, of_one = report.taken
    assert (of_ids.examples, drawn.examples) == (Examples(1, ("003", "005")), Examples(1, seed=4))
    assert (of_ids.encoders, of_one.encoders) == (["mae", "random"], ["random"])
    assert "--image 003 and --draw 1" in report(finished, "--image", "003", "--draw", "1")[2]


def metrics(folder: Path, *places: str) -> Path:
    for place in places:
        (folder / place).mkdir(parents=True)
        (folder / place / "metrics.json").write_text(json.dumps({}))
    return folder


def test_the_layout(tmp_path: Path):
    folder = metrics(tmp_path, "probes/two/mae/cls")
    (folder / "images/two").mkdir(parents=True)
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"data": "s3://bucket/sets"}))
    assert project(folder).images == "s3://bucket/sets/two", "which is not looked for"
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    assert project(folder) == Folders(
        folder / "probes/two",
        folder / "attention/two",
        (folder / "studies",),
        folder / "divergence",
        folder / "localisation",
        str(folder / "images/two"),
        "test",
        (folder / "probes",),  # kept/ is not there
        dataset="two",
        **{name: folder / name / "two" for name in ("blocks", "geometry", "similarity", "norms", "few_shot")},
        **{name: folder / name for name in ("correspondence", "retrieval", "tracking", "scores", "receipts")},
        **{name: folder / name for name in ("segmentation", "depth", "detection")},
    )


def test_images_are_opened_as_params_yaml_describes_them(finished: Path, tmp_path: Path, report):
    """Names of classes elsewhere than beside the tars; and not as another form, which an option asks for."""
    folder = copied(finished, tmp_path)
    (folder / "names.txt").write_text("bird\nfish\nhorse\n")
    described = {"test": "test", "form": "tars", "classes": "names.txt"}
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"datasets": {"one": described}}))
    assert report(folder)[0] == report(folder, "--form", "folder")[0] == report(folder, "--data", "images/one/test")[0] == 0
    asked, by_option, named = report.taken
    assert (asked.folders.form, asked.folders.classes, asked.folders.split) == ("tars", Path("names.txt"), "test")
    (gallery,) = (block for block in overlays.section(asked).blocks if isinstance(block, Gallery))
    assert {row[0].lines[0] for row in gallery.rows} <= {"bird", "fish", "horse"}
    assert by_option.folders == replace(asked.folders, form="folder")
    assert (named.folders.images, named.folders.form, named.folders.split) == ("images/one/test", None, None)


@pytest.mark.parametrize(
    ("places", "main"),
    [
        (("probes/mae/cls",), "probes"),  # by hand, without a data set in between
        (("probes/x/mae/cls",), "probes/x"),
        (("probes/mae/cls", "probes/x/mae/cls"), "probes"),
    ],
)
def test_without_params(tmp_path: Path, places: tuple[str, ...], main: str):
    taken = project(metrics(tmp_path, *places))
    assert taken.probes == tmp_path / main
    assert taken.attention == tmp_path / main.replace("probes", "attention")
    assert taken.images is None


@pytest.mark.parametrize(
    ("places", "dataset", "params", "message"),
    [
        ((), None, "", r"no metrics under .*probes.*expected .*DATASET/ENCODER/HEAD.*`dvc repro probe`.*--probes"),
        (("probes/x/mae/cls",), "y", "", r"no probes of the data set 'y' under .*one of: x; run `dvc repro probe`"),
        (("probes/x/m/cls", "probes/y/m/cls"), None, "", r"probes of 2 data sets .*\(x, y\).*choose with --dataset"),
        (("probes/x/m/cls",), None, "datasets: x", r"datasets in the parameter file is 'x', expected names"),
    ],
)
def test_what_is_not_there_is_named_with_the_remedy(tmp_path: Path, places, dataset, params: str, message: str):
    metrics(tmp_path, *places)
    if params:
        (tmp_path / "params.yaml").write_text(params)
    with pytest.raises(BeyondClsError, match=message):
        project(tmp_path, dataset)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--only", "accuracy"), {"accuracy", "gains", "probes", "published-table-1"}),
        (  # without probes
            ("--only", "statistics", "--attention", "attention/one"),
            {"aggregation-entropy", "attention-by-block", "published-table-3"},
        ),
        (("--only", "selection", "--probes", "probes/one", "--divergence", "divergence/one"), set()),  # there is nothing yet
        (("--only", "acuracy"), "unknown section of the report 'acuracy'; did you mean 'accuracy'?"),
    ],
)
def test_some_sections_as_stages_of_single_tables_ask_for(
    given, expected, finished: Path, tmp_path: Path, monkeypatch, command, no_plots
):
    monkeypatch.chdir(finished)
    status, _, err = command("report", *given, "--out", tmp_path / "page")
    if isinstance(expected, str):
        assert status == 1
        assert expected in err
    else:
        assert status == 0, err
        assert {file.stem for file in (tmp_path / "page/tables").glob("*.csv")} == expected | {"results"}


def test_results_on_dense_tasks_are_found_with_the_images_that_params_yaml_names(finished: Path, tmp_path: Path, report):
    folder = copied(finished, tmp_path)
    assert report(folder)[0] == 0
    write_segmentation(folder / "segmentation/streets", "mae")
    write_detection(folder / "detection/coco", "mae", average_precisions(12.0))
    write_images(folder / "pictures/streets/val", 3)
    dense = {"data": "pictures", "datasets": {"streets": {"test": "val", "classes": "names.txt"}, "coco": None}}
    (folder / "names.txt").write_text("a\nb\nc\n")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"dense": dense}))
    assert report(folder)[0] == 0
    assert report(folder, "--detection", folder / "detection", "--dense-data", folder / "elsewhere")[0] == 0
    without, found, elsewhere = report.taken
    assert (without.segmentation, without.detection) == ({}, {})
    assert [*found.segmentation] == ["streets"]
    assert [*found.detection] == ["coco"]
    assert of_params(Path("there"), {"dense": dense}).entries["streets"]["classes"] == Path("there/names.txt")
    images = found.folders.dense_images.opened("streets")
    assert (len(images), images.classes) == (3, ["a", "b", "c"])
    assert "No images were named, or those of params.yaml are not here" in found.folders.dense_images.opened("coco")
    for nothing in (None, {"datasets": ["coco"]}, {"data": "pictures", "datasets": ["coco"]}):
        assert isinstance(of_params(folder, {"dense": nothing}).opened("coco"), str), "no error"
    assert "--dense-data" in elsewhere.folders.dense_images.opened("streets")


@pytest.mark.parametrize("name", ["attention", "localisation", "segmentation"])
def test_a_folder_that_is_named_and_holds_nothing_of_its_kind(name: str, finished: Path, report):
    status, _, err = report(finished, "--probes", "probes/one", f"--{name}", "images")
    assert status == 1
    assert f"in --{name} images; name the folder above those" in err
