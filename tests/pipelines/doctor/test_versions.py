"""Installed versions against the requirements, and extras."""

import pytest

from pipelines.doctor import extras, versions
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.installed import install
from tests.pipelines.doctor.said import says


def test_here_all_is_as_required():
    finding = versions.check(Machine())
    assert finding.state == "ok", finding
    assert "torch" in finding.found


def test_all_fits(monkeypatch):
    install(monkeypatch)
    finding = versions.check(Machine())
    assert (finding.state, finding.remedy) == ("ok", "")
    assert finding.found.endswith("torch 2.7.0+cu126, zarr 3.1.6; all 3 required packages fit")


def test_too_old_and_missing(monkeypatch):
    install(monkeypatch, torch="2.5.1", pyyaml=None)
    words = "torch is 2.5.1, expected >=2.6; pyyaml is missing → pip install 'torch>=2.6' 'pyyaml'"
    says(versions.check(Machine()), "problem", words)


def test_python(monkeypatch):
    install(monkeypatch, python=">=3.99")
    words = ", expected >=3.99 → make an environment with Python >=3.99, and install beyondcls there"
    says(versions.check(Machine()), "problem", words)


@pytest.mark.parametrize("torch", ["2.7.0+cu126", "2.8.0"])
def test_packages_that_do_not_go_together(monkeypatch, torch):
    install(monkeypatch, torch=torch, needs={"torchvision": ["torch==2.7.0", 'numpy; extra == "x"', "pillow"]})
    finding = versions.check(Machine())
    if torch == "2.8.0":
        assert finding.state == "problem"
        assert finding.found == "torchvision 0.22.0 needs torch ==2.7.0, 2.8.0 is installed"
        assert "in one command" in finding.remedy
    else:
        assert finding.state == "ok"


def test_not_installed(monkeypatch):
    install(monkeypatch, beyondcls=None)
    says(versions.check(Machine()), "note", "is not installed")
    assert extras.check(Machine()) is None


MISSING = "complete: s3; not here: dev (no timm, torchvision), extract (no timm, torchvision) → "
EXTRACT = "to extract features, and predict from images: pip install 'beyondcls[extract]'"


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "ok", ["complete: dev, extract, s3 → "]),
        ({"timm": None, "torchvision": None}, "note", [MISSING, EXTRACT]),
        (
            {"timm": "1.0.3"},
            "problem",
            ["timm is 1.0.3, extract expects >=1.0.20", "complete: s3;", "pip install 'beyondcls[extract]'"],
        ),
    ],
)
def test_extras(monkeypatch, changes, state, words):
    install(monkeypatch, **changes)
    finding = extras.check(Machine())
    says(finding, state, *words)
    assert len(finding.remedy.splitlines()) == (0 if state == "ok" else 2)


def test_every_extra_has_its_purpose():
    from pathlib import Path

    from setuptools.config.setupcfg import read_configuration

    known = read_configuration(Path(__file__).parents[3] / "setup.cfg")["options"]["extras_require"]
    assert extras.NEEDED_FOR.keys() == known.keys()
