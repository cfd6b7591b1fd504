"""A user's own configuration: where it is looked for, what it may say, and what a project's own values do to it."""

import os
from pathlib import Path

import pytest

from pipelines.parameters.configuration import configuration_file
from pipelines.sharing.places import Places
from store import BeyondClsError
from tests.machines.machine import Machine


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home of a user who has set nothing."""
    monkeypatch.delenv("BEYONDCLS_CONFIG")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_tests_read_none():
    assert os.environ["BEYONDCLS_CONFIG"] == ""
    assert configuration_file() is None
    machine = Machine.__new__(Machine)
    machine.folder, machine.python, machine.served = Path("machine"), Path("machine/venv/bin/python"), None
    assert machine.environment["BEYONDCLS_CONFIG"] == ""


class TestWhere:
    def test_below_the_home(self, home):
        assert configuration_file() is None
        assert Places.from_params(None) == Places()
        file = write(home / ".config/beyondcls.toml", "")
        assert configuration_file() == file
        assert Places.from_params(None) == Places()

    def test_another_folder_for_configurations(self, home, monkeypatch):
        file = write(home / ".config/beyondcls.toml", "")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "xdg"))
        assert configuration_file() is None
        assert configuration_file() != file
        other = write(home / "xdg/beyondcls.toml", "")
        assert configuration_file() == other
        monkeypatch.setenv("XDG_CONFIG_HOME", "relative")  # means nothing, by its specification
        assert configuration_file() == file

    def test_a_file_that_is_named(self, home, monkeypatch):
        write(home / ".config/beyondcls.toml", "")
        other = write(home / "other.toml", "")
        for name in (str(other), "~/other.toml"):
            monkeypatch.setenv("BEYONDCLS_CONFIG", name)
            assert configuration_file() == other
        monkeypatch.setenv("BEYONDCLS_CONFIG", "")
        assert configuration_file() is None
        monkeypatch.setenv("BEYONDCLS_CONFIG", "nowhere.toml")
        with pytest.raises(BeyondClsError, match=r"BEYONDCLS_CONFIG is 'nowhere.toml', which is not a file"):
            configuration_file()


def test_values(home):
    file = write(home / ".config/beyondcls.toml", '[store]\nroot = "~/sets/"\ncache = { folder = "~/near", gb = 1.5 }\n')
    places = Places.from_params(None)
    assert places == Places(f"{home}/sets", (home / "near", 1_500_000_000))
    assert places.source == file
    assert places.shown == f"{home}/sets (store.root of {file})"


@pytest.mark.parametrize(
    ("store", "root", "cache"),
    [
        ("{}", "s3://theirs", "near"),
        ("{root: null, cache: null}", "s3://theirs", "near"),
        ("{root: mine}", "mine", "near"),
        ("{root: mine, cache: {folder: /own, gb: 1}}", "mine", "own"),
        ("{cache: {folder: /own, gb: 1}}", "s3://theirs", "own"),
        ("{root: project}", None, "near"),
        ("{root: ./project}", "./project", "near"),
    ],
)
def test_a_value_of_the_project_wins(store, root, cache, home):
    file = write(home / ".config/beyondcls.toml", '[store]\nroot = "s3://theirs"\ncache = { folder = "/near", gb = 5 }\n')
    params = write(home / "params.yaml", f"store: {store}")
    places = Places.from_params(params)
    assert places.root == root
    assert places.cache is not None
    assert places.cache[0].name == cache
    assert places.source == (file if root == "s3://theirs" else params)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[store", r"{file} is not TOML \(.*\); correct it, or name another file: BEYONDCLS_CONFIG"),
        ("[stroe]", r"unknown section in {file} 'stroe'; did you mean 'store'\?"),
        ("store = 5", r"store in {file} is 5, expected a section, e\.g\. \[store\]"),
        ('[store]\nroto = "/x"', r"unknown parameter in store of {file} 'roto'; did you mean 'root'\?"),
        ("[store]\nroot = 5", r"store\.root in {file} is 5, expected an absolute folder or an address"),
        ('[store]\nroot = "sets"', r"store\.root in {file} is 'sets', expected an absolute folder"),
        ('[store]\nroot = "project"', r"store\.root in {file} is 'project', expected an absolute folder"),
        ('[store]\nroot = "/"', r"store\.root in {file} is '/', expected an absolute folder"),
        ("[store]\ncache = 50", r"store\.cache in {file} is 50, expected a folder and gb"),
        ('[store.cache]\nfolder = "x"\ngb = 5', r"store\.cache\.folder in {file} is 'x', expected an absolute folder"),
    ],
)
def test_mistakes_are_said_whatever_the_project_names(text, message, home):
    file = write(home / ".config/beyondcls.toml", text)
    params = write(home / "params.yaml", "store: {root: mine, cache: {folder: near, gb: 1}}")
    for given in (None, params):
        with pytest.raises(BeyondClsError, match=message.format(file=file)):
            Places.from_params(given)


def test_a_file_that_cannot_be_read(home, monkeypatch):
    file = write(home / ".config/beyondcls.toml", "")

    def refuse(*arguments: object, **options: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(BeyondClsError, match=rf"{file} cannot be read \(Permission denied\); get the right to"):
        Places.from_params(None)
