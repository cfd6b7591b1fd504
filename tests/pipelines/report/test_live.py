"""The page while results come in: when it is written again, what ends that, and how it is opened."""

import os
import shutil
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipelines.report import live
from pipelines.report.collect import Folders, Inputs, collect
from pipelines.report.content import Section
from pipelines.report.live import folders_read, follow, keep_written, open_page, state
from pipelines.report.sections import leaderboard
from store import BeyondClsError
from tests.pipelines.report.written import write_probe

Step = Callable[[], object]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What happens while the program waits, one step at a time; then Ctrl-C."""

    def take(*steps: Step) -> None:
        left: Iterator[Step] = iter(steps)

        def wait(seconds: float) -> None:
            assert seconds == live.POLL_S
            if (step := next(left, None)) is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(live.time, "sleep", wait)

    return take


def nothing() -> None:
    pass


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., list[str]]:
    """Keeps a page of the leaderboard of `tmp_path`/probes written, and gives what was said."""

    def page(opens: bool = False) -> list[str]:
        said: list[str] = []
        probes = tmp_path / "probes"

        def build(inputs: Inputs) -> list[Section]:
            section = leaderboard.section(inputs)
            return [] if section is None else [section]

        keep_written(tmp_path / "out", lambda: collect(Folders(probes)), build, [probes], said.append, opens)
        return said

    return page


def index(folder: Path) -> str:
    return (folder / "out/index.html").read_text(encoding="utf-8")


def test_it_is_written_again_where_results_changed_alone(tmp_path: Path, page, steps) -> None:
    """It waits for the first results, for files that are half written, and survives that all are removed."""
    probes, seen = tmp_path / "probes", list[str]()
    description = probes / "mae/cls/description.json"
    steps(
        lambda: write_probe(probes, "mae", "cls", 40.0),
        lambda: seen.append(index(tmp_path)),
        nothing,
        lambda: write_probe(probes, "mae", "abmilp", 45.0),
        lambda: (probes / "mae/cls/checkpoint.pt").write_text("of a training"),
        lambda: description.write_text(description.read_text()[:30]),
        lambda: seen.append(index(tmp_path)),
        lambda: shutil.rmtree(probes),
        nothing,
    )
    place = tmp_path / "out/index.html"
    first, one, two, half, gone, last = page()
    assert all("there are no metrics" in line for line in (first, gone))
    assert [line.split(" ", 1)[1] for line in (one, two)] == [f"{place}: 1 heads", f"{place}: 2 heads"]
    assert str(description.with_name("metrics.json")) in half
    assert last == f"report: {place}"
    assert ["45.0 ± 0.5" in text for text in seen] == [False, True]
    assert all("40.0 ± 0.5" in text and "data-reload-s" in text for text in seen)
    assert "45.0 ± 0.5" in index(tmp_path)
    assert "data-reload-s" not in index(tmp_path), "the last page stays as it is"


def test_files_that_vanish_while_they_are_read_are_waited_for(steps) -> None:
    def write() -> None:
        raise FileNotFoundError("gone.npz")

    steps(nothing, nothing)
    said: list[str] = []
    looks = iter(({"a": (0, 0)}, {"a": (0, 0)}, {"a": (1, 0)}))
    follow(write, lambda: next(looks), said.append)
    assert ["gone.npz" in line for line in said] == [True] * 2, "not while nothing changes"


def test_what_is_looked_at(tmp_path: Path) -> None:
    write_probe(tmp_path / "probes", "mae", "abmilp", 40.0)
    places = [tmp_path / "probes", tmp_path / "params.yaml", tmp_path / "gone"]
    out = tmp_path / "probes/report"
    before = state(places, out)
    assert {Path(name).name for name in before} == {"metrics.json", "description.json", "curves.csv", "weights.npy"}
    out.mkdir()
    (out / "results.csv").write_text("")
    (tmp_path / "probes/mae/abmilp/state.pt").write_text("")
    assert state(places, out) == before
    (tmp_path / "params.yaml").write_text("")
    assert len(state(places, out)) == len(before) + 1
    metrics = tmp_path / "probes/mae/abmilp/metrics.json"
    os.utime(metrics, ns=(1, 1))
    assert state(places, out)[str(metrics)] != before[str(metrics)]
    folders = Folders(Path("p"), Path("a"), (Path("s"), Path("t")), images="images", datasets=(Path("d"),), receipts=Path("r"))
    assert set(folders_read(folders)) == {Path(name) for name in "pastdr"}


def test_the_command_writes_beside_the_pipelines_page_and_ends_with_status_0(
    tmp_path: Path, monkeypatch, command, steps
) -> None:
    write_probe(tmp_path / "probes/one", "mae", "cls", 40.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipelines.report.sections.sections", lambda inputs, only: [leaderboard.section(inputs)])
    steps(lambda: write_probe(tmp_path / "probes/two", "mae", "cls", 42.0))
    status, out, err = command("report", "--live", "--dataset", "one")
    assert (status, err) == (0, "")
    assert "report: report/live/index.html" in out
    assert not (tmp_path / "report/index.html").exists()
    assert "42.0 ± 0.5" in (tmp_path / "report/live/index.html").read_text(), "of a data set that came later"


def test_it_is_opened_once_where_there_is_a_browser(tmp_path: Path, page, steps, monkeypatch, command) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    write_probe(tmp_path / "probes", "mae", "cls", 40.0)
    steps(lambda: write_probe(tmp_path / "probes", "mae", "abmilp", 45.0), nothing)
    page(opens=True)
    page()
    given = ("--probes", tmp_path / "probes", "--only", "leaderboard", "--out", tmp_path / "by-command")
    assert [command("report", *given, *more)[::2] for more in ((), ("--open",))] == [(0, "")] * 2
    assert opened == [(tmp_path / f"{name}/index.html").resolve().as_uri() for name in ("out", "by-command")]


@pytest.mark.parametrize("fails", [{"return_value": False}, {"side_effect": webbrowser.Error}], ids=["refuses", "missing"])
def test_where_no_browser_can_be_opened_it_says_what_to_do_and_a_live_page_goes_on(
    tmp_path: Path, page, steps, monkeypatch, fails
) -> None:
    monkeypatch.setattr(webbrowser, "open", Mock(**fails))
    with pytest.raises(BeyondClsError, match=r"page\.html is written, but no browser could be opened"):
        open_page(tmp_path / "page.html")
    write_probe(tmp_path / "probes", "mae", "cls", 40.0)
    steps(nothing)
    said = page(opens=True)
    assert sum("no browser could be opened" in line for line in said) == 1
    assert said[-1].startswith("report: ")
