import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from store import BeyondClsError
from tests.decoys import lay_decoys
from tests.pipelines.report.written import write_all, write_attention, write_probe

SECTIONS = ("findings", "accuracy", "attention", "overlays", "curves", "provenance")
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements, balanced; text by element; cells of the tables."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def written(paths: dict[str, Path], *more: str) -> str:
    arguments = [part for name, path in paths.items() for part in (f"--{name}", str(path))]
    result = CliRunner().invoke(app, ["report", *arguments, "--n-examples", "2", *more], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.endswith(f"report: {paths['out'] / 'index.html'}\n")
    return (paths["out"] / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(paths: dict[str, Path]) -> str:
    return written(paths)


def test_all_sections_are_there_and_linked(page: str):
    parsed = Page(page)
    assert parsed.open == []
    ids = [attributes["id"] for tag, attributes in parsed.tags if tag == "section"]
    links = [a["href"] for tag, a in parsed.tags if tag == "a" and str(a["href"]).startswith("#")]
    assert ids == list(SECTIONS)
    assert links == [f"#{name}" for name in SECTIONS]
    all_ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(all_ids) == len(set(all_ids))


def test_loads_nothing_from_anywhere(page: str):
    for tag, attributes in Page(page).tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} has a handler {name}"
            if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                assert value is not None
                embedded = value.startswith(("#", "data:image/png;base64,", "data:image/webp;base64,"))
                beside = tag == "a" and re.fullmatch(r"(tables|figures)/[a-z0-9-]+\.(csv|tex|md|svg|png)", value)
                assert embedded or beside, f"{tag} loads {value[:60]}"
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page


def test_our_script_alone_may_run(page: str):
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in page
    assert "<script" not in page.replace(f"<script>{script}</script>", "")


def test_links_to_files_lead_to_files(page: str, paths: dict[str, Path]):
    links = [str(a["href"]) for tag, a in Page(page).tags if tag == "a" and not str(a["href"]).startswith("#")]
    assert len(links) > 20
    assert all((paths["out"] / link).is_file() for link in links)
    written_files = {
        str(file.relative_to(paths["out"])) for name in ("tables", "figures") for file in (paths["out"] / name).iterdir()
    }
    assert written_files == set(links)


def test_the_table_holds_the_numbers_of_metrics(page: str, paths: dict[str, Path]):
    table = page[page.index('id="table-accuracy"') : page.index("</table>")]
    for encoder in ("mae", "random"):
        for head in ("cls", "average", "abmilp"):
            top1 = json.loads((paths["probes"] / encoder / head / "metrics.json").read_text())["top1"]
            text = f"{top1['mean']:.1f} ± {top1['std']:.1f}"
            value = f'data-value="{top1["mean"]}">'
            assert value + (f"<b>{text}</b></td>" if head == "abmilp" else f"{text}</td>") in table
    assert table.count("<b>") == 2
    assert table.count("random twin") == 1
    assert "1.10 ± 0.50" in table
    assert "1.39" in table


def test_how_the_numbers_were_made(page: str):
    provenance = page[page.index('<section id="provenance"') :]
    assert "<dt>Selected</dt><dd>nothing</dd>" in provenance
    assert "beyondcls probe --head abmilp --out probes/&lt;mae&gt;" in provenance
    assert provenance.count("beyondcls probe") == 6


def test_published_numbers_are_marked(page: str):
    aside = page[page.index('<aside class="reference"') : page.index("</aside>")]
    for expected in ("Published, ImageNet-1k", "not comparable", "arXiv:2412.03215v1, Table 1", "71.6", "+11.3", "−1.9"):
        assert expected in aside
    assert "71.6" not in page.replace(aside, "")


def test_images_have_alternatives_and_figures_labels(page: str):
    tags = Page(page).tags
    assert all(attributes.get("alt") for tag, attributes in tags if tag == "img")
    assert sum(tag == "img" for tag, _ in tags) == 2 * 5  # image, and two maps of two encoders
    figures = [attributes for _, attributes in tags if attributes.get("role") == "img"]
    assert len(figures) == 4 + 4 + 2  # statistics, the same per head, curves
    assert all(attributes.get("aria-label") for attributes in figures)


def test_hostile_names_stay_text(tmp_path: Path):
    paths = write_all(tmp_path)
    evil = "<script>alert(1)<"
    quote = 'x" onload="alert(1)'
    for name in (evil, quote):
        for head in ("cls", "abmilp", "<b>head"):
            write_probe(paths["probes"], name, head, 40.0, recorded="<script>alert(1)</script>")
        digest = json.loads((paths["attention"] / "mae" / "summary.json").read_text())["data"]
        write_attention(paths["attention"], name, digest)
    page = written(paths)
    parsed = Page(page)
    assert [tag for tag, _ in parsed.tags].count("script") == 1  # our own
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    text = "".join(parsed.words)
    assert "<script>alert(1)</script>" in text  # the recorded name, and the first class of the images
    assert text.count("<script>alert(1)</script>") >= 3
    assert quote in text


def test_missing_attention_is_said(tmp_path: Path):
    paths = write_all(tmp_path)
    shutil.rmtree(paths["attention"] / "random")
    assert "Not computed: random." in written(paths)
    shutil.rmtree(paths["attention"])
    page = written(paths)
    assert page.count("Not computed: no encoder has this statistic.") == 4
    assert "Overlays are left out" in page
    assert "<img" not in page


def test_wrong_images_are_said_and_not_shown(tmp_path: Path):
    paths = write_all(tmp_path)
    for encoder in ("mae", "random"):
        file = paths["attention"] / encoder / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"data": "0123"}))
    page = written(paths)
    assert "its maps are of other images (data set 0123)" in page
    assert "<img" not in page


def test_says_how_it_was_made(page: str):
    made = page[page.index('<section id="provenance"') :]
    for expected in (
        "training-mae",
        "test-random",
        "epochs 2, base_lr 0.03",
        "0, 1, 2",
        "50 training, 7 test",
        "depth 1",
        "numpy",
    ):
        assert expected in made


def test_the_same_inputs_give_the_same_bytes(paths: dict[str, Path], page: str, tmp_path: Path, monkeypatch):
    """In any folder: with --probes, nothing is read that is not named."""
    (tmp_path / "project").mkdir()
    lay_decoys(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    again = {**paths, "out": tmp_path / "again"}
    assert written(again) == page
    files = [file.relative_to(paths["out"]) for file in paths["out"].rglob("*.*")]
    assert len(files) > 40
    for file in files:
        assert (again["out"] / file).read_bytes() == (paths["out"] / file).read_bytes(), file


def test_two_ways_of_choosing_images_are_refused(paths: dict[str, Path], tmp_path: Path):
    with pytest.raises(BeyondClsError, match="--image 003 and --draw 1 both choose the images"):
        written({**paths, "out": tmp_path}, "--image", "003", "--draw", "1")


def test_chosen_images_are_shown(paths: dict[str, Path], tmp_path: Path):
    page = written({**paths, "out": tmp_path}, "--image", "003", "--image", "005")
    assert [image for image in ("000", "003", "005") if f"test image {image}," in page] == ["003", "005"]
    assert "drawn at random (seed 4)" in written({**paths, "out": tmp_path}, "--draw", "4")


def test_some_encoders_alone_are_shown(paths: dict[str, Path], tmp_path: Path):
    page = written({**paths, "out": tmp_path}, "--encoder", "random")
    assert "test-random" in page
    assert "test-mae" not in page
