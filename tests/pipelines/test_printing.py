"""Whatever commands print and write, names of others steer no terminal and no spreadsheet, and secrets are not shown."""

import csv
import io
import math
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from rich.text import Text

from pipelines.cli import as_note
from pipelines.predictions.images import TABLE, Prediction, kept
from pipelines.process.command_log import CommandLog, recorded_command
from pipelines.process.progress import progress_bar
from pipelines.process.terminal import SafeConsole, printing_safely
from pipelines.report.dense import class_scores
from probe.segmentation.results import _write_confusions, _write_per_class
from store.errors import BeyondClsWarning

STEERING = ["\x1b[2J", "\x9b2J", "a\rb", "\u202egnp.exe", "\u2028", "\x1b]0;t\x07"]
COLOURED = ["\x1b[31mred\x1b[0m", "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\"]
FORMULAS = ("=HYPERLINK(1)", "-2+3", "@x", "'=1", "-0.5", "car", "\t=1")
SIGNED = "https://u:hunter2@h/x.tar?sig=s3cr3t"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def attached(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal as both streams; pytest gives each phase of a test its own, so a fixture cannot."""
    target = Terminal()
    monkeypatch.setattr(sys, "stdout", target)
    monkeypatch.setattr(sys, "stderr", target)
    monkeypatch.setenv("TERM", "xterm")
    return target


@pytest.mark.parametrize("name", [*STEERING, *COLOURED, SIGNED])
@pytest.mark.parametrize("way", ["print", "echo", "note", "table", "below a bar", "bar"])
def test_names_of_others(way: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attached(monkeypatch)
    with printing_safely():
        if way == "print":
            print("a", name, "b")
        elif way == "echo":
            typer.echo(f"a {name} b")
        elif way == "note":
            as_note(print)(BeyondClsWarning(f"a {name} b"), BeyondClsWarning)
        elif way == "table":
            SafeConsole(width=200).print(Text(f"a {name} b", "red"))
        else:
            with progress_bar(name if way == "bar" else "work", 1, "images") as advance:
                if way == "below a bar":
                    typer.echo(f"a {name} b")
                advance(1)
    written = terminal.getvalue()
    assert name not in written
    assert not any(code in written for code in ("\x1b[31mred", "\x1b]8;", "\x1b[31m\x1b"))
    assert not any(secret in written for secret in ("hunter2", "s3cr3t"))
    if name == SIGNED:
        assert "h/x.tar" in written
    elif way in ("print", "echo", "note"):  # rich leaves some out
        assert "\\" in written


def test_colours_and_bars_of_our_own_and_streams_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attached(monkeypatch)
    with printing_safely():
        assert sys.stdout.isatty()
        SafeConsole(width=80).print(Text("✓ näme", "green"))
        sys.stderr.write("\r 10%\n")  # as other packages draw theirs
        sys.stdout.writelines(["a\n", "\x1b\n"])
    assert sys.stdout is terminal
    assert terminal.getvalue() == "\x1b[32m✓ näme\x1b[0m\n\r 10%\na\n\\x1b\n"


def test_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["beyondcls", "extract", "--data", SIGNED, "--out", "a b"])
    assert shlex.split(recorded_command()) == ["beyondcls", "extract", "--data", "https://***@h/x.tar?sig=***", "--out", "a b"]


def test_a_log_is_not_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    CommandLog(tmp_path / "log").write("line")
    assert (tmp_path / "victim").read_text() == "precious"
    assert "no log is kept of this command" in capsys.readouterr().err


def test_a_command_shows_and_logs_no_secret(command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("BEYONDCLS_LOG", str(tmp_path / "logs"))
    status, out, err = command("store", "info", f"memory://u:hunter2@{tmp_path}/\x1b]0;t\x07?sig=s3cr3t")
    assert status == 1
    assert "is not a feature set" in err
    (file,) = (tmp_path / "logs").iterdir()
    for text in (out + err, file.read_text()):
        assert not any(secret in text for secret in ("hunter2", "s3cr3t", "\x1b"))


def test_classes_of_a_segmentation(tmp_path: Path) -> None:
    """No spreadsheet computes them, and they are read back as they were."""
    n = len(FORMULAS)
    counts = SimpleNamespace(counts=np.arange(n))
    sets = SimpleNamespace(classes=FORMULAS, learnt=counts, tested=counts)
    confusion = SimpleNamespace(iou=np.full(n, math.nan), counts=np.eye(n, dtype=int))
    result = SimpleNamespace(outcomes={"linear": SimpleNamespace(seeds=[0], measured=[{"grid": confusion}])})
    _write_per_class(tmp_path / "per_class.csv", sets, result)  # type: ignore[arg-type]
    _write_confusions(tmp_path / "confusion.csv", sets, result)  # type: ignore[arg-type]
    assert list(class_scores(tmp_path / "per_class.csv")) == list(FORMULAS)
    for file in tmp_path.iterdir():
        with file.open(newline="") as source:
            assert not [cell for row in csv.reader(source) for cell in row if cell in FORMULAS and cell not in ("-0.5", "car")]


def test_images_of_predictions(tmp_path: Path) -> None:
    shown = SimpleNamespace(to_rows=lambda: [{"class": "=1+1", "probability": -0.5}])
    predictor = SimpleNamespace(columns=("class", "probability"), keep=lambda *_: {}, finish=lambda _: None)
    with kept(predictor, tmp_path) as keep:  # type: ignore[arg-type]
        keep("0", Prediction(Path("=cmd.png"), shown))  # type: ignore[arg-type]
        keep("1", Prediction(Path("-a.png"), problem="+1 is no image"))
    assert (tmp_path / TABLE).read_text().splitlines()[1:] == ["'=cmd.png,'=1+1,-0.5,", "'-a.png,,,'+1 is no image"]
