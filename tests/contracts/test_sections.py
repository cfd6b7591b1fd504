"""What every section of the report does, where all was computed and where next to nothing was."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure as Plot
from matplotlib.transforms import Bbox

from pipelines.report import drawing
from pipelines.report.collect import Inputs
from pipelines.report.content import Figure, Figures, Gallery, Heading, Section, Table, Text
from pipelines.report.files import parts
from pipelines.report.page import render
from pipelines.report.sections import SECTIONS, sections
from tests.pipelines.report.everything import EVIL, everything, little
from tests.pipelines.report.html import check_page

BY_NAME = {build.__module__.rpartition(".")[2]: build for build in SECTIONS}
WORDS = re.compile(r"[a-z0-9]+(-+[a-z0-9]+)*")
NO_VALUE = re.compile(r"\b(None|nan|inf|NaN)\b|[{}]")


class Written:
    """Sections of inputs by their names: "all", "other" (the same with other numbers) and "little"."""

    def __init__(self, root: Path):
        self.inputs: dict[str, Inputs] = {
            "all": everything(root / "all"),
            "other": everything(root / "other", more=1.0),
            "little": little(root / "little"),
        }
        self.section = cache(self._section)

    def _section(self, name: str, inputs_name: str) -> Section | None:
        return built(name, self.inputs[inputs_name], draws=inputs_name == "all")


def built(name: str, inputs: Inputs, draws: bool = False) -> Section | None:
    """A section; its plots are made, and drawn where that is what is looked at, for it takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        if not draws:
            patch.setattr(drawing, "_inline_svg", lambda *_: "<svg></svg>")
            patch.setattr(drawing, "_save", lambda *_, **__: b"")
            patch.setattr(Plot, "draw_without_rendering", lambda _: None)
            patch.setattr(Plot, "get_tightbbox", lambda _: Bbox.unit())
        return BY_NAME[name](inputs)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return Written(tmp_path_factory.mktemp("sections"))


def texts(section: Section) -> Iterator[str]:
    """All that is read on the page."""
    yield section.title
    for block in section.blocks:
        match block:
            case Text():
                yield from (block.text, *block.items)
            case Heading():
                yield block.text
            case Table():
                yield from (block.title, block.note, *(column.title for column in block.columns))
                yield from (text for row in block.rows for cell in row.cells for text in (cell.text, cell.tag))
            case Figures():
                yield from (text for figure in block.figures for text in (figure.title, figure.caption, figure.alt))
            case Gallery():
                yield from (block.title, *block.columns, *(swatch.name for swatch in block.legend))
                yield from (line for row in block.rows for picture in row for line in (picture.alt, *picture.lines))


def check_name(section: Section) -> None:
    assert WORDS.fullmatch(section.anchor)
    assert section.title[0].isupper()
    assert section.blocks


def check_tables(section: Section) -> None:
    for table in parts([section], Table):
        names = [column.name for column in table.columns]
        assert WORDS.fullmatch(table.name)
        assert len(set(names)) == len(names)
        assert {len(row.cells) for row in table.rows} <= {len(names)}
        assert all(cell.text for row in table.rows for cell in row.cells)


def check_sources(section: Section) -> None:
    """Numbers of the paper are marked as such."""
    for table in parts([section], Table):
        assert table.name.startswith("published-") == ("arXiv:" in table.published)


def check_plots(section: Section) -> None:
    """They are said in words and are files, or there is a reason."""
    for figure in parts([section], Figure):
        assert WORDS.fullmatch(figure.name)
        if figure.svg:
            ElementTree.fromstring(figure.svg)
            assert len(figure.alt) > 20
            assert set(figure.files) == {"svg", "png", "pdf"}
        else:
            assert figure.caption.startswith("Not computed")


def check_values(section: Section) -> None:
    """A value that is missing is a dash, or is left out of a sentence."""
    for text in texts(section):
        assert not NO_VALUE.search(text), text


def check_html(section: Section) -> None:
    page = check_page(render([section]))
    assert section.title in "".join(page.words)
    shown = ["".join(page.words), *(str(value) for _, attributes in page.tags for value in attributes.values())]
    assert any(EVIL in text for text in shown) == any(EVIL in text for text in texts(section))


CHECKS = (check_name, check_tables, check_sources, check_plots, check_values, check_html)


@pytest.mark.parametrize("name", BY_NAME)
class TestEverySection:
    def test_where_all_and_where_little_was_computed(self, name: str, written: Written) -> None:
        section, of_little = (written.section(name, inputs) for inputs in ("all", "little"))
        assert section is not None, "all of which it could say something was computed"
        for check in CHECKS:
            check(section)
            if of_little is not None:
                check(of_little)

    def test_what_it_says_is_of_the_inputs_alone(
        self, name: str, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of others it says something else, and of the same the same in any folder."""
        sections = [written.section(name, inputs_name) for inputs_name in ("all", "other")]
        monkeypatch.chdir(tmp_path)
        one, other, again = (list(texts(section)) for section in (*sections, built(name, written.inputs["all"])) if section)
        assert one != other
        assert one == again


def test_the_page_has_each_section_once_in_this_order(written: Written) -> None:
    built_sections = [section for name in BY_NAME if (section := written.section(name, "all")) is not None]
    assert len(BY_NAME) == len(SECTIONS)
    assert len({section.anchor for section in built_sections}) == len(SECTIONS)
    for kind in (Table, Figure):
        assert parts(built_sections, kind), "files go by their names, which differ"
    of_little = [written.section(name, "little") for name in BY_NAME]
    assert [section.anchor for section in sections(written.inputs["little"])] == [s.anchor for s in of_little if s is not None]
    page = check_page(render(built_sections))
    ids = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    links = [a["href"] for tag, a in page.tags if tag == "a" and str(a["href"]).startswith("#") and a.get("class") != "skip"]
    assert ids == [section.anchor for section in built_sections]
    assert links == [f"#{anchor}" for anchor in ids]
    assert all(attributes.get("alt") for tag, attributes in page.tags if tag == "img")
    plots = [attributes for _, attributes in page.tags if attributes.get("role") == "img"]
    assert len(plots) == sum(bool(figure.svg) for figure in parts(built_sections, Figure))
    assert all(attributes.get("aria-label") for attributes in plots)
