"""Options of images on the command line and in params.yaml: what is left out, lists of one's own, scaled and turned pixels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from store import FeatureStore
from tests.extract.datasets.deep import png16
from tests.extract.datasets.test_pixels import not_upright, saved
from tests.extract.pictures import write_file, write_pictures, write_text
from tests.extract.tiny import TINY

Command = Callable[..., str]
ENCODER = {"model": "vit_tiny_patch16_224", "arguments": TINY, "random_seed": 0}


@pytest.fixture
def extract(tmp_path, monkeypatch, beyondcls) -> Command:
    """Extract `data`, or the data set `d` as its entry in params.yaml says; options are of the command line."""
    monkeypatch.chdir(tmp_path)

    def run(*options: object, data: str | None = "data/d", fails: bool = False, entry: dict | None = None) -> str:
        params = {"data": "data", "datasets": {"d": entry or {}}, "encoders": {"tiny": ENCODER}, "store": {"root": None}}
        Path("params.yaml").write_text(yaml.safe_dump(params))
        named = ("--dataset", "d") if data is None else ("--data", data)
        where = ("--encoder", "tiny", "--params", "params.yaml", "--out", "features", "--update", *named)
        return beyondcls("extract", *where, *options, fails=fails)

    return run


def test_what_is_left_out_is_said_and_too_much_is_an_error(tmp_path, extract):
    write_pictures(tmp_path / "data/d", "cat/0.jpg", "dog/0.jpg")
    assert "note" not in extract().replace("taken at its word", ""), "of a sound set nothing"
    write_file(tmp_path / "data/d/cat/notes.txt", b"x")
    assert "2 images of data/d are taken; left out: files that are no images: 1 (e.g. cat/notes.txt)" in extract()
    (tmp_path / "data/d/dog/1.jpg").symlink_to("nowhere")
    assert "dog/1.jpg" in (said := extract(fails=True))
    assert "--allow-left-out" in said
    for allowed in (extract("--allow-left-out"), extract(data=None, entry={"allow_left_out": True})):
        assert "links to images that are not there: 1 (e.g. dog/1.jpg), files that are no images: 1" in allowed
    assert len(FeatureStore.open(tmp_path / "features")) == 2


def test_a_flat_folder_is_extracted_and_cannot_be_probed(tmp_path, extract, beyondcls):
    write_pictures(tmp_path / "data/d", "0.jpg", "1.jpg")
    assert "no image of data/d has a label" in extract()
    assert FeatureStore.open(tmp_path / "features").labels.tolist() == [-1, -1]
    said = beyondcls("probe", "--features", "features", "--test", "features", "--out", "probes", "--head", "cls", fails=True)
    assert "has no valid, labelled image; a probe needs labels" in said


def test_a_list_of_ones_own(tmp_path, extract):
    write_pictures(tmp_path, "far/0.jpg")
    source = str(write_text(tmp_path / "data/d.csv", "id,path,label", f"0,{tmp_path}/far/0.jpg,0"))
    assert "--allow-outside" in extract(data=source, fails=True)
    assert "1 images of" in extract("--allow-outside", data=source)


def test_scaled_and_turned_pixels(tmp_path, extract):
    write_file(tmp_path / "data/d/cat/0.png", png16(np.random.default_rng(0).integers(0, 4096, (40, 36))))
    assert "--scale 0,65535" in extract(fails=True)
    write_file(tmp_path / "data/d/dog/1.jpg", not_upright(6))
    assert "--orientation exif turns them" in extract("--scale", "0,4095")
    keys = {FeatureStore.open(tmp_path / "features").spec.key}
    options = ("--scale", "0,4095", "--orientation", "exif")
    for given, entry in ((options, None), ((), {"scale": [0, 4095], "orientation": "exif"})):
        extract(*given, data=None, entry=entry)
        store = FeatureStore.open(tmp_path / "features")
        assert store.array("images/size").all().tolist() == [[40, 36], [48, 32]]
        keys.add(store.spec.key)
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scale", "5"), "the lower one first"),
        (("--scale", "a,b"), "expected numbers with commas"),
        (("--orientation", "upright"), "unknown orientation 'upright'"),
        (("--max-pixels", "100"), "it has 36 x 40 pixels, more than --max-pixels 100"),
    ],
)
def test_values_that_cannot_be(options, message, tmp_path, extract, command):
    write_pictures(tmp_path / "data/d", "cat/0.jpg")
    assert message in extract(*options, fails=True)


@pytest.mark.parametrize("entry", [{"allow_left_out": "yes"}, {"max_pixels": "many"}, {"allow_outside": 1}], ids=str)
def test_values_of_another_type_in_the_file(entry, tmp_path, extract):
    write_pictures(tmp_path / "data/d", "cat/0.jpg")
    [name] = entry
    assert f"datasets.d.{name} is" in extract(data=None, entry=entry, fails=True)


def test_plan_takes_them_too(tmp_path, extract, beyondcls):
    write_file(tmp_path / "data/d/cat/0.png", png16(np.arange(1440).reshape(40, 36)))
    write_file(tmp_path / "data/d/cat/0.svg", b"x")
    extract("--scale", "0,1439")
    options = ("--scale", "0,1439", "--allow-left-out", "--max-pixels", "9999", "--seconds", "1")
    said = beyondcls("plan", "--encoder", "tiny", "--params", "params.yaml", "--data", "data/d", "--out", "f", *options)
    assert "left out: pictures with the name of an image that is taken" in said


def test_a_picture_that_is_handed_over_is_held_to_the_same(tmp_path):
    from extract.datasets.pixels import Pixels
    from pipelines.live.pictures import open_pictures
    from store import BeyondClsError

    deep = Image.fromarray(np.full((4, 4), 1000, np.int32))
    with pytest.raises(BeyondClsError, match=r"cannot be shown: its values, 1000 to 1000, .*--scale 0,65535"):
        open_pictures(deep)
    assert open_pictures(deep, Pixels(scale=(0, 2000)))[0].getpixel((0, 0)) == (128, 128, 128)
    write_file(tmp_path / "x.png", saved(Image.new("RGB", (9, 7)), "png"))
    assert open_pictures(Image.open(tmp_path / "x.png"))[0].size == (9, 7)
