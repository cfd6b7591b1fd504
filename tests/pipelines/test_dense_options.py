"""Options of `beyondcls segment` and `beyondcls detect` reach what they are of; nothing is computed."""

from pathlib import Path

import pytest
from PIL import Image

from pipelines.detect import summary
from store import BeyondClsError
from tests.probe.detection.tiny import write_objects
from tests.probe.segmentation.features import write_segmented


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple]:
    """The arguments with which either task was called; it then stops."""
    calls: dict[str, tuple] = {}

    def recording(name: str):
        def record(*arguments, **options):
            calls[name] = (*arguments, options)
            raise BeyondClsError("stopped")

        return record

    monkeypatch.setattr("probe.segmentation.run.segment", recording("segment"))
    monkeypatch.setattr("probe.detection.run.detect", recording("detect"))
    return calls


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    for name, n in (("train", 8), ("test", 5), ("val", 3)):
        write_segmented(folder / name, n, blocks=(0, 1), views=3, norm=True)
    return folder


@pytest.fixture
def segmented(folder: Path, tmp_path: Path) -> tuple[object, ...]:
    return "segment", "--features", folder / "train", "--test", folder / "test", "--out", tmp_path / "out"


def test_defaults_of_segment(beyondcls, segmented, asked, tmp_path):
    assert "error: stopped" in beyondcls(*segmented, fails=True)
    sets, protocols, resolutions, options = asked["segment"]
    assert [len(store) for store in (sets.training, sets.test)] == [8, 5]
    assert (sets.validation, sets.block, sets.final_norm, sets.share, sets.placement) == (None, 1, False, 0.1, "auto")
    assert list(sets.views) == [1, 2], "random crops, where there are any"
    assert (protocols.names, protocols.loss_size) == (("knn", "logistic", "linear"), 32)
    assert (protocols.knn.ks, protocols.knn.metrics, len(protocols.logistic.cs)) == ((1, 3, 10, 30), ("cosine", "euclidean"), 8)
    assert (protocols.linear.seeds, len(protocols.linear.settings), protocols.linear.recipe.epochs) == ((0, 1, 2), 3, 20)
    assert list(resolutions) == ["original"]
    assert (options["unfinished"].folder, options["keep"]) == (tmp_path / ".unfinished/out", None)


def test_options_of_segment(beyondcls, segmented, asked, folder):
    given = "--protocol knn --protocol linear --at 64 --at original --ks 2,5 --metric cosine --cs 0.5 --as-stored --epochs 4 "
    given += "--batch-size 3 --base-lrs 0.2,0.4 --weight-decays 0.1 --seeds 4 --loss-size 24 --views 1 --block 0 --final-norm "
    given += f"--held-out 0.3 --placement stream --save-maps 1 --val {folder / 'val'}"
    beyondcls(*segmented, *given.split(), fails=True)
    sets, protocols, resolutions, options = asked["segment"]
    assert len(sets.validation) == 3
    assert (sets.block, sets.final_norm, sets.share, sets.placement, list(sets.views)) == (0, True, 0.3, "stream", [0])
    assert (protocols.names, protocols.loss_size, list(resolutions)) == (("knn", "linear"), 24, [64, "original"])
    assert (protocols.knn.ks, protocols.knn.metrics, protocols.knn.standardise) == ((2, 5), ("cosine",), False)
    assert (protocols.logistic.cs, protocols.logistic.standardise) == ((0.5,), False)
    recipe, plan = protocols.linear.recipe, protocols.linear
    assert (recipe.epochs, recipe.batch_size, plan.seeds, plan.settings) == (4, 3, (4,), [(0.2, 0.1), (0.4, 0.1)])
    assert options["keep"] is not None


def test_mistakes_of_segment(beyondcls, segmented, asked, tmp_path):
    for given, message in (
        (("--at", "0"), "--at is '0', expected original or a number of pixels such as 512"),
        (("--block", "7"), "has no array 'patch/block7/view0'"),
        (("--metric", "cosin"), "did you mean 'cosine'"),
        (("--ks", "0"), "ks holds 0, expected positive whole numbers"),
        (("--probes", tmp_path / "none"), "every labelled pixel would be foreground; choose classes of sky, road, car"),
        (("--probes", tmp_path / "none", "--foreground", "car"), "there are no probes in"),
    ):
        assert message in beyondcls(*segmented, *given, fails=True)
    assert not asked


def test_saved_maps_are_of_this_run(beyondcls, segmented, tmp_path):
    """Of all images, where there are fewer than were asked for; at the first of the resolutions."""
    (tmp_path / "out/maps/linear").mkdir(parents=True)
    (tmp_path / "out/maps/linear/old.png").touch()
    (tmp_path / "out/maps/images.json").write_text('{"images": [{"file": "old.png"}]}')
    (tmp_path / "out/maps/mine").mkdir()
    (tmp_path / "out/maps/mine/notes.png").touch()
    given = "--protocol knn --ks 1 --metric cosine --save-maps 99 --at 8 --at original"
    beyondcls(*segmented, *given.split())
    assert not (tmp_path / "out/maps/linear").exists()
    assert (tmp_path / "out/maps/mine/notes.png").exists(), "what no run wrote stays"
    maps = list((tmp_path / "out/maps/knn").iterdir())
    assert len(maps) == 5
    assert {Image.open(file).size for file in maps} == {(8, 8)}


def test_options_of_detect(beyondcls, asked, tmp_path):
    stores = [write_objects(tmp_path / name, n=5, seed=i, views=3) for i, name in enumerate(("train", "test"))]
    (tmp_path / "some.txt").write_text("000001\n000004\n")
    (tmp_path / "others.txt").write_text("000000\n000002\n000003\n")
    common = ("detect", "--features", stores[0].path, "--test", stores[1].path, "--out", tmp_path / "out")
    given = f"--ids {tmp_path / 'some.txt'} --test-ids {tmp_path / 'others.txt'} --seeds 3,1 --views 2,0 --block 1 --workers 2 "
    given += "--placement stream --preset small --epochs 7 --no-masks --no-final-norm --anchors 8,16,32,64"
    beyondcls(*common, *given.split(), fails=True)
    detection, out, notes, _ = asked["detect"]
    assert (detection.training.rows.tolist(), detection.test.rows.tolist()) == ([1, 4], [0, 2, 3])
    assert (detection.training.store.path, detection.test.store.path) == tuple(store.path for store in stores)
    assert (list(detection.seeds), list(detection.views), detection.block) == ([3, 1], [2, 0], 1)
    assert (detection.workers, detection.placement, out) == (2, "stream", tmp_path / "out")
    assert (detection.recipe.epochs, detection.recipe.lr, detection.recipe.clip) == (7, 1e-3, 1.0)
    assert (detection.options.masks, detection.options.final_norm, detection.options.anchors) == (False, False, (8, 16, 32, 64))
    assert (detection.options.width, detection.options.proposals) == (64, 400), "the preset's"
    assert {name: notes[name] for name in ("preset", "ids", "test_ids")} == {
        "preset": "small",
        "ids": "some.txt",
        "test_ids": "others.txt",
    }
    assert "has no array 'patch/block7/view0'" in beyondcls(*common, "--block", "7", fails=True)


def test_a_result_of_zero_is_one():
    """Where no object has a size, there is no number."""
    box = {name: {"mean": 0.0} for name in ("ap", "ap50", "ap_large", "ap_medium")} | {"ap_small": None}
    said = summary({"box": box, "seeds": [0], "n_test": 1234})
    assert said == "box AP 0.0 (at IoU 0.5 0.0, large 0.0, medium 0.0, small –), 1 seed, 1,234 test images"
