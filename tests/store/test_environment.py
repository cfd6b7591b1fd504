"""Versions of packages, and the kind of machine."""

import platform
from importlib.metadata import version

from store import environment
from store.environment import machine, versions_of


def test_versions_without_packages_that_are_not_installed():
    assert versions_of(("numpy", "no-such-package")) == {"numpy": version("numpy")}


def test_the_processor_is_named_or_its_architecture(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.20GHz\n")
    monkeypatch.setattr(environment, "CPUINFO", file)
    assert (machine("cpu")["processor"], machine("cpu")["device"]) == ("Some CPU @ 2.20GHz", "cpu")
    file.write_text("processor\t: 0\n")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert machine("cpu")["processor"] == "arm"
    monkeypatch.setattr(platform, "processor", lambda: "")
    for missing in (file, tmp_path / "nowhere"):  # as on ARM, and on other systems
        monkeypatch.setattr(environment, "CPUINFO", missing)
        assert machine("cpu")["processor"] == platform.machine()
