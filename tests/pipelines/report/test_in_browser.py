"""The page in a browser: what it shows, sorts and complains of. Skipped where there is no Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.report import files
from pipelines.report.collect import Folders, collect
from pipelines.report.content import Cell, Column, Row, Section, Table
from pipelines.report.page import render
from pipelines.report.sections import sections
from tests.pipelines.report.browser import EXECUTABLE, MISSING, Browser
from tests.pipelines.report.written import write_large

N_ENCODERS, LARGEST = 12, 3_000_000  # encoders of the large page, and its bytes at most
VALUES = (("b", 10.0), ("a10", 9.5), ("a9", None), ("Ä", -1.0))
NAME, VALUE = 1, 2  # columns, as CSS counts them


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Section]]:
    """A report of twelve encoders of 12 blocks and 12 heads, as `beyondcls report` writes it, and its sections."""
    root = tmp_path_factory.mktemp("large")
    data = write_large(root, N_ENCODERS)
    inputs = collect(Folders(root / "probes", root / "attention", images=data))
    result = sections(inputs)
    files.write(root / "out", inputs, result)
    return root / "out" / "index.html", result


@pytest.fixture
def large(shown: tuple[Path, list[Section]]) -> Path:
    return shown[0]


@pytest.fixture(scope="module")
def sortable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with one table of two groups."""
    columns = (Column("name", "Name", "text"), Column("value", "Value", "spread"))
    rows = [
        Row((Cell(name, name), Cell("–" if value is None else f"{value:.0f} ± 1", value)), group)
        for group in ("first", "second")
        for name, value in VALUES
    ]
    file = tmp_path_factory.mktemp("sortable") / "index.html"
    file.write_text(render([Section("one", "One", (Table("x", "X", "Note.", columns, tuple(rows)),))]), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if EXECUTABLE is None:
        pytest.skip(MISSING)
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, large: Path) -> Browser:
    browser.look(1280)
    browser.complaints.clear()
    browser.open(large)
    return browser


@pytest.fixture
def table(browser: Browser, sortable: Path) -> Browser:
    browser.look(1280)
    browser.complaints.clear()
    browser.open(sortable)
    return browser


def order(table: Browser) -> list[str]:
    """First cells of the rows, names of groups included."""
    names: list[str] = table.value("[...document.querySelectorAll('#table-x tbody tr')].map((row) => row.cells[0].textContent)")
    return names


def click(table: Browser, column: int) -> None:
    table.value(f"document.querySelector('#table-x thead th:nth-child({column}) button').click()")


def sorted_by(table: Browser) -> list[str | None]:
    values: list[str | None] = table.value(
        "[...document.querySelectorAll('#table-x thead th')].map((header) => header.getAttribute('aria-sort'))"
    )
    return values


def test_a_page_of_twelve_encoders_is_small(large: Path):
    assert large.stat().st_size < LARGEST


def test_it_opens_without_complaint_and_shows_every_section(page: Browser, shown: tuple[Path, list[Section]]):
    assert page.complaints == []
    tall = page.value("[...document.querySelectorAll('section')].filter((s) => s.offsetHeight > 50).map((s) => s.id)")
    assert tall == [section.anchor for section in shown[1]]
    broken = page.value("[...document.images].filter((image) => !image.complete || !image.naturalWidth).length")
    assert (broken, page.value("document.images.length > 100")) == (0, True)
    assert page.value("[...document.querySelectorAll('.plot svg')].every((svg) => svg.getBoundingClientRect().height > 80)")


def test_complaints_are_heard(table: Browser, sortable: Path, tmp_path: Path):
    evil = tmp_path / "evil.html"
    text = sortable.read_text(encoding="utf-8")
    evil.write_text(text.replace("</main>", "<script>document.title = 'evil'</script></main>"), encoding="utf-8")
    table.open(evil)
    assert any("Content Security Policy" in complaint for complaint in table.complaints)
    assert table.value("document.title") != "evil"
    table.complaints.clear()
    table.value("console.error('heard')")
    assert any("heard" in complaint for complaint in table.complaints)


def test_a_click_sorts_a_second_one_reverses_within_groups(table: Browser):
    assert order(table) == ["first", "b", "a10", "a9", "Ä", "second", "b", "a10", "a9", "Ä"]
    assert sorted_by(table) == [None, None]
    click(table, VALUE)
    assert order(table) == ["first", "Ä", "a10", "b", "a9", "second", "Ä", "a10", "b", "a9"]  # -1, 9.5, 10, nothing
    assert sorted_by(table) == [None, "ascending"]
    click(table, VALUE)
    assert order(table)[:5] == ["first", "b", "a10", "Ä", "a9"]  # nothing stays last
    assert sorted_by(table) == [None, "descending"]
    click(table, NAME)
    assert order(table)[:5] == ["first", "Ä", "a9", "a10", "b"]
    assert sorted_by(table) == ["ascending", None]
    assert table.complaints == []


def test_the_keyboard_sorts(table: Browser):
    table.value("document.querySelector('.scroll').focus()")
    table.press("Tab")
    assert table.value("document.activeElement.textContent") == "Name"
    table.press("Enter")
    assert sorted_by(table) == ["ascending", None]
    table.press("Tab")
    table.press("Enter")
    assert sorted_by(table) == [None, "ascending"]
    assert order(table)[:2] == ["first", "Ä"]


def test_without_its_script_the_page_reads(browser: Browser, sortable: Path):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(sortable)
        nodes = browser.send("DOM.getDocument", depth=-1)["root"]
        text = browser.send("DOM.getOuterHTML", nodeId=nodes["nodeId"])["outerHTML"]
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
    assert "<button" not in text
    assert all(part in text for part in (">Name</th>", ">10 ± 1</td>", ">second</th>"))


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_makes_the_page_scroll_sideways(page: Browser, width: int):
    page.look(width)
    assert page.value("innerWidth") == width
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    page.value("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    wide = page.value("[...document.querySelectorAll('.scroll')].some((box) => box.scrollWidth > box.clientWidth)")
    assert wide  # the maps of twelve encoders do, in their own box


@pytest.mark.parametrize(("width", "side"), [(390, 96), (1280, 128)])
def test_pictures_are_square(page: Browser, width: int, side: int):
    page.look(width)
    sizes = page.value("[...document.images].map((image) => [image.clientWidth, image.clientHeight].join())")
    assert set(sizes) == {f"{side},{side}"}


def test_both_colour_schemes(page: Browser):
    colours = {}
    for scheme in ("light", "dark"):
        page.look(1280, scheme)
        ground, ink, line = page.value(
            "(() => { const of = (name, what) => getComputedStyle(document.querySelector(name))[what];"
            "return [of('body', 'backgroundColor'), of('body', 'color'), of('.plot svg path[style*=series-0]', 'stroke')]; })()"
        )
        colours[scheme] = line
        light = [sum(map(int, colour[4:-1].split(","))) for colour in (ground, ink)]
        assert (light[0] > light[1] + 400) is (scheme == "light")
        assert (light[1] > light[0] + 400) is (scheme == "dark")
    assert colours["light"] != colours["dark"]


def test_what_is_folded_is_printed(page: Browser):
    assert page.value("[...document.querySelectorAll('details')].some((folded) => !folded.open)")
    page.value("dispatchEvent(new Event('beforeprint'))")
    assert page.value("[...document.querySelectorAll('details')].every((folded) => folded.open)")
