"""Packages of other distributions under our names."""

from importlib import metadata

from pipelines.doctor import packages
from pipelines.doctor.machine import Machine
from tests.pipelines.doctor.said import says


def test_here_they_are_ours():
    says(packages.check(Machine()), "ok", "extract, pipelines, probe, store are those of beyondcls alone")


def test_another_distribution_has_one_too(monkeypatch):
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"store": ["beyondcls", "shop"], "probe": ["beyondcls"]})
    words = "store is also of shop → install beyondcls in its own environment: python -m venv .venv"
    says(packages.check(Machine()), "problem", words)
