"""What notebooks show of feature sets, images and heads, and progress bars of calls from Python."""

import contextlib
import re

import pytest
from PIL import Image

import beyondcls
from extract.datasets import ImageSet
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe
from store import BeyondClsError
from store.shown import first_names, html_rows, html_table
from tests.extract.tiny import tiny_encoder
from tests.features import write_features

PLAN = HeadPlan(HeadSpec("cls"), Recipe(epochs=2, warmup_epochs=0), seeds=(0, 1))


def rows_of(shown):
    """Values by name."""
    return dict(re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", shown))


@pytest.fixture
def bars():
    """A bar, and what it was given: (what, total, unit), then units."""
    said = []

    @contextlib.contextmanager
    def bars(*described):
        said.append(described)
        yield said.append

    bars.said = said
    return bars


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name in ("<i>cat", "dog"):
        (folder / name).mkdir()
        Image.new("RGB", (8, 8), (9, 9, 9)).save(folder / name / "1.png")
    (folder / "dog/2.png").write_bytes(b"")
    return beyondcls.open_images(str(folder))


def test_text_is_escaped():
    assert html_table("<a>", {"<b>": '"<c>&'}).count("&lt;") == 3
    assert "<script" not in html_rows("t", ["<script>"], [["<script>"]])
    assert (first_names(["a", "b", "c"], 2), first_names(None)) == ("3: a, b, …", "–")


def test_a_feature_set(tmp_path):
    store = write_features(tmp_path / "a & b", 12, invalid=[3], classes=["<x>", "y", "z"])
    rows = rows_of(store._repr_html_())
    assert "a &amp; b" in store._repr_html_()
    assert rows["encoder"] == "encoder-w"
    assert rows["classes"] == "3: &lt;x&gt;, y, z"
    assert rows["patch/block1/view0"] == "[12, 9, 8] float16, 0.0 MB"
    assert rows["key"] == store.spec.key
    assert "not in this copy" not in rows
    (tmp_path / "a & b/patch").rename(tmp_path / "away")
    assert rows_of(beyondcls.open_store(store.path)._repr_html_())["not in this copy"] == "patch"


def test_images(images):
    rows = rows_of(images._repr_html_())
    assert rows["images"] == "3"
    assert rows["classes"] == "2: &lt;i&gt;cat, dog"
    assert re.fullmatch(r"1, first: .*2.png: is empty .*", rows["problems"])
    cut = ImageSet(images.source, images.samples, images.classes, problems=["<b> is cut", "c is cut"])
    assert rows_of(cut._repr_html_())["problems"] == "3, first: &lt;b&gt; is cut"
    assert repr(images) == f"ImageSet({images.source!r}, 3 images)"


def test_a_head():
    rows = rows_of(HeadSpec("abmilp").build(8, 9, 3)._repr_html_())
    assert rows == {
        "reads": "patch",
        "tokens, vector, classes": "8, 8, 3",
        "normalisation": "batch",
        "parameters": "9 and 27 of the classifier",
    }
    assert rows_of(HeadSpec("cls", normalisation="none").build(8, None, 3)._repr_html_())["normalisation"] == "none"


def test_extraction_shows_a_bar(images, bars, tmp_path):
    encoder = tiny_encoder()
    options = {"on_error": "record", "statistics": ()}
    store = beyondcls.extract(encoder, images, str(tmp_path / "f"), bars=bars, **options)
    assert len(store) == 3
    assert bars.said[0] == (encoder.name, 3, "images")
    assert sum(bars.said[1:]) == 3
    with pytest.raises(BeyondClsError, match="bars and progress were both given"):
        beyondcls.extract(encoder, images, tmp_path / "g", bars=bars, progress=print, **options)


def test_training_shows_a_bar(bars, tmp_path):
    train, test = (write_features(tmp_path / name, 48, seed=seed) for seed, name in enumerate(("a", "b")))
    beyondcls.probe(train, test, str(tmp_path / "cls"), PLAN, bars=bars)
    assert bars.said[0] == ("encoder-w cls", 4, "epochs")
    assert sum(bars.said[1:]) == 4
    with pytest.raises(BeyondClsError, match="bars and progress were both given"):
        beyondcls.probe(train, test, tmp_path / "cls", PLAN, bars=bars, progress=print)


def test_the_bar_of_the_command_line_is_one(capsys):
    with beyondcls.progress_bar("mae", 3, "images") as progress:
        progress(3)
    assert "mae" in capsys.readouterr().out
