"""The page in a browser: what it shows, sorts and complains of. Skipped where there is no Chromium."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.report.content import Cell, Column, Row, Section, Table, Text
from pipelines.report.page import render
from pipelines.report.sections import sections
from tests.pipelines.report.everything import ENCODERS, EVIL, everything

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
PORTRAIT, LANDSCAPE = 718, 1047  # pixels between the margins of A4
AXE = "4.12.1"  # the version of axe-core that found nothing; setup.cfg pins the package that brings it
VALUES = (("b", 10.0), ("a10", 9.5), ("a9", None), ("Ä", -1.0))
NAME, VALUE = 1, 2  # columns, as CSS counts them


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Section]]:
    """A page with everything that a page can have, and its sections."""
    root = tmp_path_factory.mktemp("everything")
    file, content = root / "index.html", sections(everything(root))
    file.write_text(render(content), encoding="utf-8")
    return file, content


def write_page(file: Path, title: str = "One", reload_s: float | None = None) -> None:
    """A page with a table of two groups, the same once more and folded, and a long text."""
    columns = (Column("name", "Name", "text", filters=True), Column("value", "Value", "spread"))
    rows = [
        Row((Cell(name, name), Cell("–" if value is None else f"{value:.0f} ± 1", value)), group)
        for group in ("first", "second")
        for name, value in VALUES
    ]
    table = Table("x", "X", "Note.", columns, tuple(rows))
    section = Section("one", title, (table, replace(table, name="y", folded=True), Text("", ("text",) * 100)))
    file.write_text(render([section], reload_s=reload_s), encoding="utf-8")


@pytest.fixture(scope="module")
def sortable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sortable") / "index.html"
    write_page(file)
    return file


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """Errors of scripts, of the console and of the page's policy, as they come."""
    return []


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine; apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="it is not installed; pip install 'beyondcls[dev]'")
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def browser(chromium: "Browser", complaints: list[str]) -> "Page":
    page = chromium.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning", "assert") else None)
    return page


def look(page: "Page", width: int, scheme: str = "light", media: str = "screen") -> None:
    """As a screen that is `width` pixels wide, in a scheme; or as paper."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(media=media, color_scheme=scheme)


@pytest.fixture
def opened(browser: "Page", complaints: list[str]) -> Callable[[Path], "Page"]:
    def opened(file: Path) -> "Page":
        look(browser, 1280)
        complaints.clear()
        browser.goto(file.as_uri())
        return browser

    return opened


@pytest.fixture
def page(opened: Callable[[Path], "Page"], shown: tuple[Path, list[Section]]) -> "Page":
    return opened(shown[0])


@pytest.fixture
def table(opened: Callable[[Path], "Page"], sortable: Path) -> "Page":
    return opened(sortable)


def order(table: "Page") -> list[str]:
    """First cells of the rows, names of groups included."""
    names: list[str] = table.evaluate(
        "[...document.querySelectorAll('#table-x tbody tr')].map((row) => row.cells[0].textContent)"
    )
    return names


def click(table: "Page", column: int) -> None:
    table.evaluate(f"document.querySelector('#table-x thead th:nth-child({column}) button').click()")


def sorted_by(table: "Page") -> list[str | None]:
    values: list[str | None] = table.evaluate(
        "[...document.querySelectorAll('#table-x thead th')].map((header) => header.getAttribute('aria-sort'))"
    )
    return values


def test_it_opens_without_complaint_and_shows_every_section(
    page: "Page", shown: tuple[Path, list[Section]], complaints: list[str]
):
    assert complaints == []
    tall = page.evaluate("[...document.querySelectorAll('section')].filter((s) => s.offsetHeight > 50).map((s) => s.id)")
    assert tall == [section.anchor for section in shown[1]]
    broken = page.evaluate("[...document.images].filter((image) => !image.complete || !image.naturalWidth).length")
    assert (broken, page.evaluate("document.images.length > 50")) == (0, True)
    sizes = page.evaluate("[...document.querySelectorAll('#overlays img')].map((i) => [i.clientWidth, i.clientHeight].join())")
    assert {*sizes} == {"128,128", "0,0"}, "some are hidden"
    assert page.evaluate("[...document.querySelectorAll('.plot svg')].every((svg) => svg.getBoundingClientRect().height > 80)")


def test_a_click_sorts_a_second_one_reverses_within_groups(table: "Page", complaints: list[str]):
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
    assert complaints == []


def test_without_its_script_the_page_reads(chromium: "Browser", sortable: Path):
    with chromium.new_page(java_script_enabled=False) as page:
        page.goto(sortable.as_uri())
        text = page.content()
    assert "<button" not in text
    assert "reload-s" not in text.split("<body>")[0], "a page that is not live"
    assert all(part in text for part in (">Name</th>", ">10 ± 1</td>", ">second</th>"))


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_makes_the_page_scroll_sideways(page: "Page", width: int):
    look(page, width)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


BROKEN = """[...document.querySelectorAll('.data th, .data td')].flatMap((cell) => {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), broken = [];
  while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/\\p{L}+/gu)) {
    const range = document.createRange();
    range.setStart(texts.currentNode, word.index);
    range.setEnd(texts.currentNode, word.index + word[0].length);
    const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
    if (lines.size > 1) broken.push(word[0]);
  }
  return broken;
})"""


def test_on_a_phone_no_word_is_broken_and_the_main_measure_is_in_sight(page: "Page"):
    look(page, 390)
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert {*page.evaluate(BROKEN)} <= {*re.findall(r"\w+", EVIL)}, "but for a name without spaces"
    edges = page.evaluate(
        "[...document.querySelectorAll('.data')].map((table) => ["
        "[...table.tHead.rows[0].cells].find((header) => header.dataset.kind !== 'text'), table.closest('.scroll')])"
        ".filter(([header]) => header).map(([header, box]) => [box.querySelector('table').id, "
        "header.getBoundingClientRect().right - box.getBoundingClientRect().right])"
    )
    main = {f"table-{name}" for name in ("claims", "leaderboard", "cost", "by-block", "accuracy", "gains", "probes")}
    assert main <= {name for name, beyond in edges if beyond <= 1}


def test_both_colour_schemes(page: "Page"):
    """Of the ground, of letters and of the first line of a plot."""
    colours = []
    for scheme in ("light", "dark"):
        look(page, 1280, scheme)
        of = "getComputedStyle(document.querySelector('body'))"
        colours.append(page.evaluate(f"[{of}.backgroundColor, {of}.color, {of}.getPropertyValue('--series-0')]"))
    assert colours == [
        ["rgb(255, 255, 255)", "rgb(29, 33, 38)", "#0072b2"],
        ["rgb(21, 24, 27)", "rgb(228, 231, 234)", "#56b4e9"],
    ]


def test_what_is_folded_is_printed_and_folded_again(page: "Page"):
    before, printed, after = (
        page.evaluate(f"{event}[...document.querySelectorAll('details')].map((folded) => folded.open)")
        for event in ("", "dispatchEvent(new Event('beforeprint')), ", "dispatchEvent(new Event('afterprint')), ")
    )
    assert False in before
    assert all(printed)
    assert after == before


@pytest.mark.parametrize(("width", "tables"), [(PORTRAIT, ".scroll:not(.wide)"), (LANDSCAPE, ".scroll")])
def test_nothing_is_cut_off_on_paper(page: "Page", width: int, tables: str):
    look(page, width, media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    cut_off = page.evaluate(
        f"[...document.querySelectorAll('{tables}')].filter((box) => box.scrollWidth > 1 + box.clientWidth"
        " || box.scrollHeight > 1 + box.clientHeight).map((box) => box.getAttribute('aria-label'))"
    )
    controls = page.evaluate("[...document.querySelectorAll('nav, .controls, .files')].filter((e) => e.clientHeight).length")
    hidden = page.evaluate("[...document.images].filter((image) => !image.clientWidth).length")
    assert (cut_off, controls, hidden) == ([], 0, 0)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_has_the_figure_and_what_holds(page: "Page", width: int):
    look(page, width)
    assert page.evaluate("document.querySelector('#figure-error-shares').getBoundingClientRect().top") < 900 * 0.7
    assert page.evaluate("document.querySelectorAll('#table-claims tbody tr').length") > 0


def rows_shown(page: "Page") -> list[list[str]]:
    """Cells of the leaderboard that are shown."""
    cells: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#table-leaderboard tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => [...row.cells].filter((cell) => !cell.hidden).map((cell) => cell.firstChild.textContent))"
    )
    return cells


def choose(page: "Page", label: str, option: str) -> None:
    """In the filters of the leaderboard."""
    page.evaluate(
        "(() => { const bar = document.querySelector('#leaderboard .controls');"
        f"const label = [...bar.querySelectorAll('label')].find((one) => one.firstChild.textContent === {label!r});"
        "const select = label.querySelector('select');"
        f"select.value = [...select.options].find((one) => one.text === {option!r}).value;"
        "select.dispatchEvent(new Event('change')); })()"
    )


def test_the_leaderboard_is_filtered_by_family_head_and_data_set(page: "Page", complaints: list[str]):
    all_rows = rows_shown(page)
    assert (len(all_rows), len(all_rows[0])) == (5 * len(ENCODERS), 9)  # three columns are of data sets
    choose(page, "Family", "joint")
    assert [row[1] for row in rows_shown(page)] == ["joint"] * 5
    choose(page, "Data set", "one")
    assert [row[2:5] for row in rows_shown(page)][:3] == [
        ["ep", "–", "46.0 ± 0.5"],
        ["AbMILP", "49.7", "45.0 ± 0.5"],
        ["[cls]", "45.0", "40.0 ± 0.5"],
    ]
    assert len(rows_shown(page)[0]) == 7
    choose(page, "Head", "AbMILP")
    assert page.evaluate("document.querySelector('#leaderboard [role=status]').textContent") == "1 of 20 rows"
    for label in ("Family", "Head", "Data set"):
        choose(page, label, "all")
    assert (len(rows_shown(page)), len(rows_shown(page)[0])) == (20, 9)
    assert complaints == []


def pictures_shown(page: "Page") -> list[str]:
    """Of the first gallery."""
    alts: list[str] = page.evaluate(
        "[...document.querySelectorAll('#overlays img')].filter((image) => image.clientWidth).map((image) => image.alt)"
    )
    return alts


def test_sliders_show_one_image_and_one_head(page: "Page"):
    first = pictures_shown(page)
    assert len(first) == 1 + len(ENCODERS)
    assert all("[cls] attention" in alt for alt in first[1:])
    page.evaluate("document.querySelector('#gallery-0-image').focus()")
    page.keyboard.press("ArrowRight")
    second = pictures_shown(page)
    assert not set(first) & set(second)
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')").startswith("2 of 2: ")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert len(pictures_shown(page)) == len(second)
    assert all("AbMILP weights" in alt for alt in pictures_shown(page)[1:])
    page.evaluate("document.querySelector('#gallery-0-all').click()")
    assert len(pictures_shown(page)) == page.evaluate("document.querySelectorAll('#overlays img').length")


def findings_of_axe(page: "Page", rules: str = "") -> list[str]:
    """What axe-core finds against the page, with the element: of WCAG and of its best practices, or by some of its rules."""
    pytest.importorskip("axe_playwright_python", reason="axe-core is not installed; pip install 'beyondcls[dev]'")
    if not page.evaluate("'axe' in window"):
        page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8") + "; undefined")
    assert page.evaluate("axe.version") == AXE
    findings: list[str] = page.evaluate(
        f"axe.run(document, {{ resultTypes: ['violations'], {rules} }}).then((result) => result.violations.flatMap("
        "(rule) => rule.nodes.map((node) => `${rule.id}: ${node.failureSummary} ${node.html}`)))"
    )
    return findings


# Colours are most of the work, and depend on sizes of letters and on the scheme; all else depends on the width.
COLOURS = "runOnly: ['color-contrast']"
OTHERS = "rules: { 'color-contrast': { enabled: false } }"


# Leaves one of all rows of tables that have the same elements, of the same classes.
ONE_OF_A_KIND = """(() => {
  const kinds = new Set();
  for (const row of document.querySelectorAll('tbody tr')) {
    const kind = row.outerHTML.replace(/ (id|title|alt|src|href|data-value)="[^"]*"/g, '').replace(/>[^<]*/g, '>');
    if (kinds.has(kind)) row.remove(); else kinds.add(kind);
  }
})()"""


@pytest.mark.parametrize(
    ("width", "scheme", "rules"), [(1280, "light", OTHERS), (390, "light", COLOURS), (390, "dark", COLOURS)]
)
def test_accessible(page: "Page", width: int, scheme: str, rules: str):
    look(page, width, scheme)
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    page.evaluate("for (const box of document.querySelectorAll('.controls input[type=checkbox]')) box.click()")
    page.evaluate(ONE_OF_A_KIND)
    assert findings_of_axe(page, rules) == []


def test_a_live_page_loads_itself_again(chromium: "Browser", tmp_path: Path):
    write_page(tmp_path / "live.html", reload_s=0.1)
    with chromium.new_page() as page:
        page.goto((tmp_path / "live.html").as_uri())
        for _ in range(2):  # this one again, too
            page.wait_for_event("load")


def test_a_live_page_stays_as_it_was_left(opened: Callable[[Path], "Page"], tmp_path: Path, complaints: list[str]):
    file = tmp_path / "live.html"
    write_page(file, "First", reload_s=3600)
    browser = opened(file)
    assert browser.evaluate("document.querySelector('header label').textContent") == "Live: loads again every 3600 s"
    for script in (
        "document.querySelector('#table-x thead button').click()",
        "document.querySelector('#table-x thead button').click()",
        "document.querySelector('details').open = true",
        "document.querySelector('select').value = 'b'",
        "document.querySelector('select').dispatchEvent(new Event('change'))",
        "document.querySelector('#live').click()",
        "scrollTo({ top: 700, behavior: 'instant' })",
    ):
        browser.evaluate(script)
    write_page(file, "Second", reload_s=0.05)
    browser.reload()
    shown = browser.evaluate(
        "[document.querySelector('h2').textContent, document.querySelector('details').open,"
        "document.querySelector('select').value, document.querySelector('#table-x th').getAttribute('aria-sort'),"
        "Math.round(scrollY), document.querySelectorAll('#table-x tbody tr:not([hidden])').length]"
    )
    assert shown == ["Second", True, "b", "descending", 700, 4]  # b and the name of each group
    browser.evaluate("window.same = true; new Promise((done) => setTimeout(done, 300))")
    assert browser.evaluate("window.same"), "its box is unticked"
    assert complaints == []
