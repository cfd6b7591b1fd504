"""A user's own configuration: where it is looked for, what it may say, and what a project's own values do to it."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipelines.parameters.configuration import configuration_file
from pipelines.sharing.places import Places
from store import BeyondClsError
from tests.extract.pictures import write_file


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home of a user who has set nothing."""
    monkeypatch.delenv("BEYONDCLS_CONFIG")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_tests_read_none():
    assert os.environ["BEYONDCLS_CONFIG"] == ""
    assert configuration_file() is None


def test_where_it_is_looked_for(home, monkeypatch):
    assert configuration_file() is None
    assert Places.from_params(None) == Places()
    file = write_file(home / ".config/beyondcls.toml", b"")
    assert configuration_file() == file
    assert Places.from_params(None) == Places()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
    assert configuration_file() is None
    xdg, other = write_file(home / "xdg/beyondcls.toml", b""), write_file(home / "other.toml", b"")
    assert configuration_file() == xdg
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # means nothing, by its specification
    assert configuration_file() == file
    for name, expected in ((str(other), other), ("~/other.toml", other), ("", None)):
        monkeypatch.setenv("BEYONDCLS_CONFIG", name)
        assert configuration_file() == expected
    monkeypatch.setenv("BEYONDCLS_CONFIG", "nowhere.toml")
    with pytest.raises(BeyondClsError, match=r"BEYONDCLS_CONFIG is 'nowhere.toml', which is not a file"):
        configuration_file()


def test_values(home):
    file = write_file(home / ".config/beyondcls.toml", b'[store]\nroot = "~/sets/"\ncache = { folder = "~/near", gb = 1.5 }\n')
    places = Places.from_params(None)
    assert places == Places(f"{home}/sets", (home / "near", 1_500_000_000))
    assert (places.source, places.shown) == (file, f"{home}/sets (store.root of {file})")


@pytest.mark.parametrize(
    ("store", "root", "cache"),
    [
        ("{root: null, cache: null}", "s3://theirs", "near"),
        ("{cache: {folder: /own, gb: 1}}", "s3://theirs", "own"),
        ("{root: project}", None, "near"),
        ("{root: ./project, cache: {folder: /own, gb: 1}}", "./project", "own"),
    ],
)
def test_a_value_of_the_project_wins(store, root, cache, home):
    text = b'[store]\nroot = "s3://theirs"\ncache = { folder = "/near", gb = 5 }\n'
    file = write_file(home / ".config/beyondcls.toml", text)
    params = write_file(home / "params.yaml", f"store: {store}".encode())
    places = Places.from_params(params)
    assert (places.root, places.cache and places.cache[0].name) == (root, cache)
    assert places.source == (file if root == "s3://theirs" else params)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[store", "is not TOML"),
        ("[stroe]", "unknown section in {file} 'stroe'; did you mean 'store'"),
        ("store = 5", r"store in {file} is 5, expected a section"),
        ('[store]\nroto = "/x"', r"unknown parameter in store of {file} 'roto'; did you mean 'root'"),
        ("[store]\nroot = 5", r"store\.root in {file} is 5, expected an absolute folder or an address"),
        ('[store]\nroot = "project"', r"store\.root in {file} is 'project', expected an absolute"),
        ("[store]\ncache = 50", r"store\.cache in {file} is 50, expected a folder and gb"),
        ('[store.cache]\nfolder = "x"\ngb = 5', r"store\.cache\.folder in {file} is 'x', expected an absolute folder"),
    ],
)
def test_mistakes_are_said_whatever_the_project_names(text, message, home):
    file = write_file(home / ".config/beyondcls.toml", text.encode())
    params = write_file(home / "params.yaml", b"store: {root: mine, cache: {folder: near, gb: 1}}")
    for given in (None, params):
        with pytest.raises(BeyondClsError, match=message.format(file=file)):
            Places.from_params(given)


def test_a_file_that_cannot_be_read(home, monkeypatch):
    file = write_file(home / ".config/beyondcls.toml", b"")
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(BeyondClsError, match=rf"{file} cannot be read \(Permission denied\)"):
        Places.from_params(None)
