"""The page in a browser: what it shows, sorts and complains of. Skipped where there is no Chromium."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from pipelines.report.collect import collect
from pipelines.report.content import Cell, Column, Definitions, Row, Section, Table
from pipelines.report.page import render
from pipelines.report.sections import sections
from tests.pipelines.report.browser import EXECUTABLE, MISSING, Browser
from tests.pipelines.report.everything import everything
from tests.pipelines.report.large import DATASETS, GAINS, HEADS, write_large

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


@contextmanager
def started(profile: Path) -> Iterator[Browser]:
    if EXECUTABLE is None:
        pytest.skip(MISSING)
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def opened(browser: Browser, file: Path) -> Browser:
    browser.look(1280)
    browser.complaints.clear()
    browser.open(file)
    return browser


@pytest.fixture
def page(browser: Browser, large: Path) -> Browser:
    return opened(browser, large)


@pytest.fixture
def table(browser: Browser, sortable: Path) -> Browser:
    return opened(browser, sortable)


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


def test_a_large_page_is_small(large: Path):
    assert large.stat().st_size < LARGEST


def test_it_opens_without_complaint_and_shows_every_section(page: Browser, shown: tuple[Path, list[Section]]):
    assert page.complaints == []
    tall = page.value("[...document.querySelectorAll('section')].filter((s) => s.offsetHeight > 50).map((s) => s.id)")
    assert tall == [section.anchor for section in shown[1]]
    broken = page.value("[...document.images].filter((image) => !image.complete || !image.naturalWidth).length")
    assert (broken, page.value("document.images.length > 100")) == (0, True)
    sizes = page.value("[...document.images].filter((i) => i.clientWidth).map((i) => [i.clientWidth, i.clientHeight].join())")
    assert set(sizes) == {"128,128"}
    assert page.value("[...document.querySelectorAll('.plot svg')].every((svg) => svg.getBoundingClientRect().height > 80)")


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
    for key in ("Tab", "Tab", "Enter"):
        table.press(key)
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
    assert "reload-s" not in text.split("<body>")[0], "a page that is not live"
    assert all(part in text for part in (">Name</th>", ">10 ± 1</td>", ">second</th>"))


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_makes_the_page_scroll_sideways(page: Browser, width: int):
    page.look(width)
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    page.value("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")


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


def test_on_a_phone_no_word_is_broken_and_the_main_measure_is_in_sight(page: Browser):
    page.look(390)
    page.value("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.value(BROKEN) == []
    edges = page.value(
        "[...document.querySelectorAll('.data')].map((table) => ["
        "[...table.tHead.rows[0].cells].find((header) => header.dataset.kind !== 'text'), table.closest('.scroll')])"
        ".filter(([header]) => header).map(([header, box]) => [box.querySelector('table').id, "
        "header.getBoundingClientRect().right - box.getBoundingClientRect().right])"
    )
    assert [name for name, beyond in edges if beyond > 1] == []


def test_both_colour_schemes(page: Browser):
    colours = {}
    for scheme in ("light", "dark"):
        page.look(1280, scheme)
        ground, ink, *lines = page.value(
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


def test_what_is_folded_is_printed_and_folded_again(page: Browser):
    before, printed, after = (
        page.value(f"{event}[...document.querySelectorAll('details')].map((folded) => folded.open)")
        for event in ("", "dispatchEvent(new Event('beforeprint')), ", "dispatchEvent(new Event('afterprint')), ")
    )
    assert False in before
    assert all(printed)
    assert after == before


@pytest.mark.parametrize(("width", "tables"), [(PORTRAIT, ".scroll:not(.wide)"), (LANDSCAPE, ".scroll")])
def test_nothing_is_cut_off_on_paper(page: Browser, width: int, tables: str):
    page.look(width, media="print")
    page.value("dispatchEvent(new Event('beforeprint'))")
    cut_off = page.value(
        f"[...document.querySelectorAll('{tables}')].filter((box) => box.scrollWidth > 1 + box.clientWidth"
        " || box.scrollHeight > 1 + box.clientHeight).map((box) => box.getAttribute('aria-label'))"
    )
    controls = page.value("[...document.querySelectorAll('nav, .controls, .files')].filter((e) => e.clientHeight).length")
    hidden = page.value("[...document.images].filter((image) => !image.clientWidth).length")
    assert (cut_off, controls, hidden) == ([], 0, 0)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_has_the_figure_and_what_holds(page: Browser, width: int):
    page.look(width)
    assert page.value("document.querySelector('#figure-error-shares').getBoundingClientRect().top") < 900 * 0.7
    assert page.value("document.querySelectorAll('#table-claims tbody tr').length") > 0


def rows_shown(page: Browser) -> list[list[str]]:
    """Cells of the leaderboard that are shown."""
    cells: list[list[str]] = page.value(
        "[...document.querySelectorAll('#table-leaderboard tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => [...row.cells].filter((cell) => !cell.hidden).map((cell) => cell.firstChild.textContent))"
    )
    return cells


def choose(page: Browser, label: str, option: str) -> None:
    """In the filters of the leaderboard."""
    page.value(
        "(() => { const bar = document.querySelector('#leaderboard .controls');"
        f"const label = [...bar.querySelectorAll('label')].find((one) => one.firstChild.textContent === {label!r});"
        "const select = label.querySelector('select');"
        f"select.value = [...select.options].find((one) => one.text === {option!r}).value;"
        "select.dispatchEvent(new Event('change')); })()"
    )


def test_the_leaderboard_is_filtered_by_family_head_and_data_set(page: Browser):
    everything = rows_shown(page)
    n_heads = len(HEADS)
    assert (len(everything), len(everything[0])) == (len(GAINS) * n_heads, 6 + len(DATASETS))
    choose(page, "Family", "joint")
    assert {row[1] for row in rows_shown(page)} == {"joint"}
    choose(page, "Head", "AbMILP")
    assert len(rows_shown(page)) == 4
    assert page.value("document.querySelector('#leaderboard [role=status]').textContent") == f"4 of {len(everything)} rows"
    choose(page, "Data set", "cub200")
    values = [float(row[4].split()[0]) for row in rows_shown(page)]
    assert len(rows_shown(page)[0]) == 7
    assert values == sorted(values, reverse=True)
    for label in ("Family", "Head", "Data set"):
        choose(page, label, "all")
    assert len(rows_shown(page)) == len(everything)
    assert page.complaints == []


def pictures_shown(page: Browser) -> list[str]:
    alts: list[str] = page.value("[...document.images].filter((image) => image.clientWidth).map((image) => image.alt)")
    return alts


def test_sliders_show_one_image_and_one_head(page: Browser):
    first = pictures_shown(page)
    assert len(first) == 1 + len(GAINS)
    assert all("[cls] attention" in alt for alt in first[1:])
    page.value("document.querySelector('#gallery-0-image').focus()")
    page.press("ArrowRight")
    second = pictures_shown(page)
    assert not set(first) & set(second)
    assert page.value("document.activeElement.getAttribute('aria-valuetext')").startswith("2 of 6: ")
    page.press("Tab")
    page.press("ArrowRight")
    assert len(pictures_shown(page)) == len(second)
    assert all("AbMILP weights" in alt for alt in pictures_shown(page)[1:])
    page.value("document.querySelector('#gallery-0-all').click()")
    assert len(pictures_shown(page)) == page.value("document.images.length")


def findings_of_axe(page: Browser, rules: str = "") -> list[str]:
    """What axe-core finds against the page, with the element: of WCAG and of its best practices, or by some of its rules."""
    pytest.importorskip("axe_playwright_python", reason="axe-core is not installed; pip install 'beyondcls[dev]'")
    if not page.value("'axe' in window"):
        page.value((resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8") + "; undefined")
    assert page.value("axe.version") == AXE
    findings: list[str] = page.value(
        f"axe.run(document, {{ resultTypes: ['violations'], {rules} }}).then((result) => result.violations.flatMap("
        "(rule) => rule.nodes.map((node) => `${rule.id}: ${node.failureSummary} ${node.html}`)))"
    )
    return findings


# Colours are most of the work, and depend on sizes of letters and on the scheme; all else depends on the width.
COLOURS = "runOnly: ['color-contrast']"
OTHERS = "rules: { 'color-contrast': { enabled: false } }"


@pytest.mark.parametrize(
    ("width", "scheme", "rules"),
    [(1280, "light", OTHERS), (390, "light", COLOURS), (390, "dark", COLOURS)],
)
def test_accessible(browser: Browser, every_block: Path, width: int, scheme: str, rules: str):
    browser.look(width, scheme)
    browser.open(every_block)
    browser.value("for (const folded of document.querySelectorAll('details')) folded.open = true")
    browser.value("for (const box of document.querySelectorAll('.controls input[type=checkbox]')) box.click()")
    assert findings_of_axe(browser, rules) == []


def write_live(file: Path, title: str, reload_s: float) -> None:
    rows = tuple(Row((Cell(name, name), Cell(str(n), n))) for n, name in enumerate("abc"))
    columns = (Column("name", "Name", "text", filters=True), Column("value", "Value"))
    tall = Definitions(tuple((f"term {n}", "text") for n in range(100)))
    small = Table("x", "X", "Note.", columns, rows)
    blocks = (small, tall, replace(small, name="y", folded=True))
    file.write_text(render([Section("one", title, blocks)], reload_s=reload_s), encoding="utf-8")


def test_a_live_page_loads_itself_again(tmp_path: Path):
    """In a browser that ends with it: when the next page is opened, it would load itself in its place."""
    write_live(tmp_path / "live.html", "First", reload_s=0.1)
    with started(tmp_path / "profile") as browser:
        browser.open(tmp_path / "live.html")
        browser.wait_for_load()
        browser.wait_for_load()  # this one again, too


def test_a_live_page_stays_as_it_was_left(browser: Browser, tmp_path: Path):
    file = tmp_path / "live.html"
    write_live(file, "First", reload_s=3600)
    opened(browser, file)
    assert browser.value("document.querySelector('header label').textContent") == "Live: loads again every 3600 s"
    for script in (
        "document.querySelector('#table-x thead button').click()",
        "document.querySelector('#table-x thead button').click()",
        "document.querySelector('details').open = true",
        "document.querySelector('select').value = 'b'",
        "document.querySelector('select').dispatchEvent(new Event('change'))",
        "document.querySelector('#live').click()",
        "scrollTo({ top: 700, behavior: 'instant' })",
    ):
        browser.value(script)
    write_live(file, "Second", reload_s=0.05)
    browser.send("Page.reload")
    browser.wait_for_load()
    shown = browser.value(
        "[document.querySelector('h2').textContent, document.querySelector('details').open,"
        "document.querySelector('select').value, document.querySelector('#table-x th').getAttribute('aria-sort'),"
        "Math.round(scrollY), document.querySelectorAll('#table-x tbody tr:not([hidden])').length]"
    )
    assert shown == ["Second", True, "b", "descending", 700, 1]
    browser.value("window.same = true; new Promise((done) => setTimeout(done, 300))")
    assert browser.value("window.same"), "its box is unticked"
    assert browser.complaints == []
