"""The scripts of the gallery run, and print what their pages show. They share a folder, so what one extracts others keep."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = re.findall(r"^gallery/(\w+)$", (ROOT / "docs/gallery.md").read_text(), re.MULTILINE)
MEASURED = r"\d+(?:\.\d+)?(?= (?:%|nats|MB))"
POINTS = 6  # by which a measured number may differ on another machine


def percent():
    """docs/percent.py, which is of no package."""
    spec = importlib.util.spec_from_file_location("percent", ROOT / "docs/percent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "percent", module)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    (folder / "quickstart").symlink_to(ROOT / "quickstart")
    return folder


def assert_alike(printed, shown):
    """The same but for measured numbers, and a patch or two of a picture."""
    printed, shown = ("\n".join(map(str.rstrip, text.splitlines())) for text in (printed, shown))
    if set(shown) <= set(".# \n"):
        assert len(printed) == len(shown)
        assert sum(a != b for a, b in zip(printed, shown, strict=True)) <= 2, printed
        return
    assert re.sub(MEASURED, "N", printed) == re.sub(MEASURED, "N", shown)
    for value, expected in zip(re.findall(MEASURED, printed), re.findall(MEASURED, shown), strict=True):
        assert float(value) == pytest.approx(float(expected), abs=POINTS), printed


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    printed = ""
    for cell, now_printed in percent().executed(ROOT / f"docs/gallery/{name}.py"):
        if cell.kind == "output":
            assert_alike(printed, cell.text)
        else:
            assert not printed, "what code prints is shown"
        printed = now_printed
    assert not printed


def test_every_script_is_a_page():
    assert sorted(SCRIPTS) == sorted(file.stem for file in (ROOT / "docs/gallery").glob("*.py"))


def test_pages():
    cells = percent().cells("# %% [markdown]\n# # T\n#\n# text\n\n# %%\nx = 1\n\n# %% [output]\n# 1\n#  2\n")
    assert [(cell.kind, cell.text, cell.line) for cell in cells] == [
        ("markdown", "# T\n\ntext", 2),
        ("code", "x = 1", 7),
        ("output", "1\n 2", 10),
    ]
    shown = percent().page(ROOT / "docs/gallery/first_features.py")
    assert shown.startswith("# First features\n")
    assert "# %%" not in shown
    assert shown.count("```python") == shown.count("```text") == 4
    for wrong in ("x = 1\n# %%\n", "# %% [drawing]\n"):
        with pytest.raises(ValueError, match="expected"):
            percent().cells(wrong)


def test_outputs_that_differ_are_seen():
    assert_alike("a 31 %\n", "a 35 %")
    for printed, shown in (("a 31 %", "b 31 %"), ("a 31 %", "a 41 %"), ("a 3", "a 4"), ("...#\n####", "....\n....")):
        with pytest.raises(AssertionError):
            assert_alike(printed, shown)
