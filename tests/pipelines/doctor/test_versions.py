"""Installed versions against the requirements, and extras."""

import pytest

from pipelines.doctor import extras, versions
from pipelines.doctor.here import Here
from tests.pipelines.doctor.installed import install


def test_here_all_is_as_required():
    finding = versions.check(Here())
    assert finding.state == "ok", finding
    assert "torch" in finding.found


def test_all_fits(monkeypatch):
    install(monkeypatch)
    finding = versions.check(Here())
    assert (finding.state, finding.remedy) == ("ok", "")
    assert finding.found.endswith("torch 2.7.0+cu126, zarr 3.1.6; all 3 required packages fit")


def test_too_old_and_missing(monkeypatch):
    install(monkeypatch, torch="2.5.1", pyyaml=None)
    finding = versions.check(Here())
    assert finding.state == "problem"
    assert finding.found == "torch is 2.5.1, expected >=2.6; pyyaml is missing"
    assert finding.remedy == "pip install 'torch>=2.6' 'pyyaml'"


def test_python(monkeypatch):
    install(monkeypatch, python=">=3.99")
    finding = versions.check(Here())
    assert finding.state == "problem"
    assert ", expected >=3.99" in finding.found
    assert finding.remedy == "make an environment with Python >=3.99, and install beyondcls there"


@pytest.mark.parametrize("torch", ["2.7.0+cu126", "2.8.0"])
def test_packages_that_do_not_go_together(monkeypatch, torch):
    install(monkeypatch, torch=torch, needs={"torchvision": ["torch==2.7.0", 'numpy; extra == "x"', "pillow"]})
    finding = versions.check(Here())
    if torch == "2.8.0":
        assert finding.state == "problem"
        assert finding.found == "torchvision 0.22.0 needs torch ==2.7.0, 2.8.0 is installed"
        assert "in one command" in finding.remedy
    else:
        assert finding.state == "ok"


def test_not_installed(monkeypatch):
    install(monkeypatch, beyondcls=None)
    finding = versions.check(Here())
    assert finding.state == "note"
    assert "is not installed" in finding.found
    assert extras.check(Here()) is None


def test_extras_that_are_complete(monkeypatch):
    install(monkeypatch)
    finding = extras.check(Here())
    assert (finding.state, finding.found, finding.remedy) == ("ok", "complete: dev, extract, s3", "")


def test_extras_that_are_missing_say_what_for(monkeypatch):
    install(monkeypatch, timm=None, torchvision=None)
    finding = extras.check(Here())
    assert finding.state == "note"
    assert finding.found == "complete: s3; not here: dev (no timm, torchvision), extract (no timm, torchvision)"
    assert "to extract features, and predict from images: pip install 'beyondcls[extract]'" in finding.remedy.splitlines()
    assert len(finding.remedy.splitlines()) == 2


def test_extra_in_a_wrong_version(monkeypatch):
    install(monkeypatch, timm="1.0.3")
    finding = extras.check(Here())
    assert finding.state == "problem"
    assert "timm is 1.0.3, extract expects >=1.0.20" in finding.found
    assert "complete: s3;" in finding.found
    assert "pip install 'beyondcls[extract]'" in finding.remedy


def test_every_extra_has_its_purpose():
    from pathlib import Path

    from setuptools.config.setupcfg import read_configuration

    known = read_configuration(Path(__file__).parents[3] / "setup.cfg")["options"]["extras_require"]
    assert extras.NEEDED_FOR.keys() == known.keys()
