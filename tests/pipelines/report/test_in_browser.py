"""The page in a browser: what it shows, sorts and complains of. Skipped where there is no Chromium."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.report.collect import collect
from pipelines.report.content import Cell, Column, Row, Section, Table, Text
from pipelines.report.page import render
from pipelines.report.sections import sections
from tests.pipelines.report.everything import everything
from tests.pipelines.report.large import DATASETS, GAINS, HEADS, write_large

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
LARGEST = 3_000_000  # bytes of the page of 14 encoders and 8 data sets
PORTRAIT, LANDSCAPE = 718, 1047  # pixels between the margins of A4
AXE = "4.12.1"  # the version of axe-core that found nothing; setup.cfg pins the package that brings it
VALUES = (("b", 10.0), ("a10", 9.5), ("a9", None), ("Ä", -1.0))
NAME, VALUE = 1, 2  # columns, as CSS counts them


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Section]]:
    """A report of 14 encoders of 12 blocks and 12 heads on 8 data sets, as `beyondcls report` writes it, and its sections."""
    root = tmp_path_factory.mktemp("large")
    file, content = root / "index.html", sections(collect(write_large(root)))
    file.write_text(render(content), encoding="utf-8")
    return file, content


@pytest.fixture
def large(shown: tuple[Path, list[Section]]) -> Path:
    return shown[0]


@pytest.fixture(scope="module")
def every_block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything that a page can have."""
    root = tmp_path_factory.mktemp("everything")
    file = root / "index.html"
    file.write_text(render(sections(everything(root))), encoding="utf-8")
    return file


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
def page(opened: Callable[[Path], "Page"], large: Path) -> "Page":
    return opened(large)


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


def test_a_large_page_is_small(large: Path):
    assert large.stat().st_size < LARGEST


def test_it_opens_without_complaint_and_shows_every_section(
    page: "Page", shown: tuple[Path, list[Section]], complaints: list[str]
):
    assert complaints == []
    tall = page.evaluate("[...document.querySelectorAll('section')].filter((s) => s.offsetHeight > 50).map((s) => s.id)")
    assert tall == [section.anchor for section in shown[1]]
    broken = page.evaluate("[...document.images].filter((image) => !image.complete || !image.naturalWidth).length")
    assert (broken, page.evaluate("document.images.length > 100")) == (0, True)
    sizes = page.evaluate(
        "[...document.images].filter((i) => i.clientWidth).map((i) => [i.clientWidth, i.clientHeight].join())"
    )
    assert set(sizes) == {"128,128"}
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


def test_the_keyboard_sorts(table: "Page"):
    table.evaluate("document.querySelector('.scroll').focus()")
    for key in ("Tab", "Tab", "Enter"):
        table.keyboard.press(key)
    assert sorted_by(table) == [None, "ascending"]
    assert order(table)[:2] == ["first", "Ä"]


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
    assert page.evaluate(BROKEN) == []
    edges = page.evaluate(
        "[...document.querySelectorAll('.data')].map((table) => ["
        "[...table.tHead.rows[0].cells].find((header) => header.dataset.kind !== 'text'), table.closest('.scroll')])"
        ".filter(([header]) => header).map(([header, box]) => [box.querySelector('table').id, "
        "header.getBoundingClientRect().right - box.getBoundingClientRect().right])"
    )
    assert [name for name, beyond in edges if beyond > 1] == []


def test_both_colour_schemes(page: "Page"):
    colours = {}
    for scheme in ("light", "dark"):
        look(page, 1280, scheme)
        ground, ink, *lines = page.evaluate(
            "(() => { const of = (name, what) => getComputedStyle(document.querySelector(name))[what];"
            "return [of('body', 'backgroundColor'), of('body', 'color'),"
            "...[...document.querySelectorAll('.plot svg path')].map((path) => getComputedStyle(path).stroke)]; })()"
        )
        colours[scheme] = set(lines)
        light = [sum(map(int, colour[4:-1].split(","))) for colour in (ground, ink)]
        assert (light[0] > light[1] + 400) is (scheme == "light")
        assert (light[1] > light[0] + 400) is (scheme == "dark")
    first = {"light": "rgb(0, 114, 178)", "dark": "rgb(86, 180, 233)"}  # --series-0
    assert {scheme: [colour for colour in first.values() if colour in colours[scheme]] for scheme in first} == {
        scheme: [colour] for scheme, colour in first.items()
    }


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
    everything = rows_shown(page)
    n_heads = len(HEADS)
    assert (len(everything), len(everything[0])) == (len(GAINS) * n_heads, 6 + len(DATASETS))
    choose(page, "Family", "joint")
    assert {row[1] for row in rows_shown(page)} == {"joint"}
    choose(page, "Head", "AbMILP")
    assert len(rows_shown(page)) == 4
    assert page.evaluate("document.querySelector('#leaderboard [role=status]').textContent") == f"4 of {len(everything)} rows"
    choose(page, "Data set", "cub200")
    values = [float(row[4].split()[0]) for row in rows_shown(page)]
    assert len(rows_shown(page)[0]) == 7
    assert values == sorted(values, reverse=True)
    for label in ("Family", "Head", "Data set"):
        choose(page, label, "all")
    assert len(rows_shown(page)) == len(everything)
    assert complaints == []


def pictures_shown(page: "Page") -> list[str]:
    alts: list[str] = page.evaluate("[...document.images].filter((image) => image.clientWidth).map((image) => image.alt)")
    return alts


def test_sliders_show_one_image_and_one_head(page: "Page"):
    first = pictures_shown(page)
    assert len(first) == 1 + len(GAINS)
    assert all("[cls] attention" in alt for alt in first[1:])
    page.evaluate("document.querySelector('#gallery-0-image').focus()")
    page.keyboard.press("ArrowRight")
    second = pictures_shown(page)
    assert not set(first) & set(second)
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')").startswith("2 of 6: ")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert len(pictures_shown(page)) == len(second)
    assert all("AbMILP weights" in alt for alt in pictures_shown(page)[1:])
    page.evaluate("document.querySelector('#gallery-0-all').click()")
    assert len(pictures_shown(page)) == page.evaluate("document.images.length")


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


# Leaves one of all rows of tables that have the same elements, of the same classes: their colours are the same.
ONE_OF_A_KIND = """(() => {
  const kinds = new Set();
  for (const row of document.querySelectorAll('tbody tr')) {
    const kind = row.outerHTML.replace(/ (id|title|alt|src|href|data-value)="[^"]*"/g, '').replace(/>[^<]*/g, '>');
    if (kinds.has(kind)) row.remove(); else kinds.add(kind);
  }
})()"""


@pytest.mark.parametrize(
    ("width", "scheme", "rules"),
    [(1280, "light", OTHERS), (390, "light", COLOURS), (390, "dark", COLOURS)],
)
def test_accessible(browser: "Page", every_block: Path, width: int, scheme: str, rules: str):
    look(browser, width, scheme)
    browser.goto(every_block.as_uri())
    browser.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    browser.evaluate("for (const box of document.querySelectorAll('.controls input[type=checkbox]')) box.click()")
    if rules == COLOURS:
        browser.evaluate(ONE_OF_A_KIND)
    assert findings_of_axe(browser, rules) == []


def write_live(file: Path, title: str, reload_s: float) -> None:
    rows = tuple(Row((Cell(name, name), Cell(str(n), n))) for n, name in enumerate("abc"))
    columns = (Column("name", "Name", "text", filters=True), Column("value", "Value"))
    tall = Text("", ("text",) * 100)
    small = Table("x", "X", "Note.", columns, rows)
    blocks = (small, tall, replace(small, name="y", folded=True))
    file.write_text(render([Section("one", title, blocks)], reload_s=reload_s), encoding="utf-8")


def test_a_live_page_loads_itself_again(chromium: "Browser", tmp_path: Path):
    write_live(tmp_path / "live.html", "First", reload_s=0.1)
    with chromium.new_page() as page:
        page.goto((tmp_path / "live.html").as_uri())
        for _ in range(2):  # this one again, too
            page.wait_for_event("load")


def test_a_live_page_stays_as_it_was_left(opened: Callable[[Path], "Page"], tmp_path: Path, complaints: list[str]):
    file = tmp_path / "live.html"
    write_live(file, "First", reload_s=3600)
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
    write_live(file, "Second", reload_s=0.05)
    browser.reload()
    shown = browser.evaluate(
        "[document.querySelector('h2').textContent, document.querySelector('details').open,"
        "document.querySelector('select').value, document.querySelector('#table-x th').getAttribute('aria-sort'),"
        "Math.round(scrollY), document.querySelectorAll('#table-x tbody tr:not([hidden])').length]"
    )
    assert shown == ["Second", True, "b", "descending", 700, 1]
    browser.evaluate("window.same = true; new Promise((done) => setTimeout(done, 300))")
    assert browser.evaluate("window.same"), "its box is unticked"
    assert complaints == []
