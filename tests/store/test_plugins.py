"""Registries with entries of other packages: found by metadata, imported when used, never in place of one of ours."""

import shutil
import sys

import pytest

from store import BeyondClsError
from store.errors import BeyondClsWarning
from store.plugins import Registry, declared, misplaced
from tests.plugins import declare


def check(entry):
    if not isinstance(entry, int):
        raise TypeError(f"it is {entry!r}, expected a number")


def registry():
    return Registry[int]("aggregators", check, "taken".__eq__) | {"one": 1, "two": 2}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of imports, with a package of two entries."""
    declare(tmp_path, "tens", "aggregators", {"ten": "tens:TEN", "lacking": "tens:NONE", "word": "tens:WORD"})
    (tmp_path / "tens.py").write_text("TEN, WORD = 10, 'ten'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("tens", "rivals", "broken", "inner", "inner.deep"):
        sys.modules.pop(name, None)


def test_names_are_there_and_nothing_is_imported_before_one_is_used(site, monkeypatch):
    entries = registry()
    assert list(entries) == ["one", "two", "lacking", "ten", "word"]
    assert ("ten" in entries, "eleven" in entries, len(entries)) == (True, False, 5)
    assert "tens" not in sys.modules
    assert entries["ten"] == 10
    assert "tens" in sys.modules
    assert entries.plugin("one") is None
    assert (entries.plugin("ten").package, entries.plugin("ten").version) == ("tens", "1.0")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(site)])
    assert list(entries) == ["one", "two"], "without the package its names are gone"
    for name in ("ten", "eleven"):
        with pytest.raises(KeyError):
            entries[name]


def test_what_cannot_be_imported_or_used_is_refused_alone(site):
    entries = registry()
    for name, why in (("lacking", "AttributeError"), ("word", "it is 'ten', expected a number")):
        with pytest.raises(BeyondClsError, match=rf"aggregator '{name}' of the package tens 1\.0 .*{why}.*pip uninstall tens"):
            entries[name]
    with pytest.warns(BeyondClsWarning) as said:
        assert dict(entries.items()) == {"one": 1, "two": 2, "ten": 10}
    assert len(said) == 2
    (site / "tens.py").write_text(f"open({str(site / 'tried')!r}, 'a').write('.')\nraise SystemExit(3)\n")
    sys.modules.pop("tens", None)
    entries = registry()
    for _ in range(2):
        with pytest.raises(BeyondClsError, match="SystemExit: 3"):
            entries["ten"]
    assert (site / "tried").read_text() == "."


@pytest.mark.parametrize(
    ("name", "why"),
    [("one", "a name of beyondcls"), ("taken", "a name of beyondcls"), ("a/b", "a name with"), ("ten", "the name of one of")],
)
def test_a_name_of_ours_or_of_another_is_refused(site, name, why):
    declare(site, "rivals", "aggregators", {name: "rivals:ONE"})
    (site / "rivals.py").write_text("ONE = 100\n")
    entries = registry()
    with pytest.warns(BeyondClsWarning) as said:
        assert entries["one"] == 1
    assert any(f"of the package rivals 1.0 has {why}" in str(one.message) for one in said)
    assert "rivals" not in sys.modules
    assert len(said) == (2 if name == "ten" else 1)
    assert name == "one" or name not in entries


def test_groups_that_nothing_reads_are_named(site):
    assert misplaced() == []
    declare(site, "rivals", "agregators", {"mine": "rivals:ONE"})
    (fault,) = misplaced()
    assert "'mine' of the package rivals 1.0" in fault
    assert "did you mean 'aggregators'" in fault


def digest_of(name):
    (plugin,) = (plugin for plugin in declared("aggregators") if plugin.name == name)
    return plugin.digest()


def test_a_digest_follows_the_code_and_the_version(site):
    first = digest_of("ten")
    (site / "tens.py").write_text("TEN, WORD = 11, 'ten'\n")
    assert digest_of("ten") != first
    (site / "tens.py").write_text("TEN, WORD = 10, 'ten'\n")
    assert digest_of("ten") == first
    declare(site, "tens", "aggregators", {"ten": "tens:TEN"}, version="1.1")
    shutil.rmtree(site / "tens-1.0.dist-info")
    assert digest_of("ten") != first
    assert "tens" not in sys.modules


def test_all_files_of_a_package_count_also_of_one_in_a_namespace(site):
    (site / "inner/deep").mkdir(parents=True)
    for name in ("deep/__init__.py", "deep/helper.py", "other.py"):
        (site / "inner" / name).write_text("")
    declare(site, "nested", "aggregators", {"nested": "inner.deep:TEN"})
    first = digest_of("nested")
    (site / "inner/other.py").write_text("# of another package\n")
    assert digest_of("nested") == first
    (site / "inner/deep/helper.py").write_text("X = 1\n")
    assert digest_of("nested") != first


def test_a_file_names_the_package_that_it_needs(site):
    entries = registry()
    entries.check_package("ten", "tens", "f")
    entries.check_package("one", None, "f")
    entries.check_package("ten", "no name; rm -rf", "f")
    for name, package, here in (("ten", "others", "one of tens"), ("one", "tens", "one of beyondcls"), ("x", "xs", "none of")):
        with pytest.raises(BeyondClsError, match=rf"f needs the aggregator '{name}' .*{here}.*pip install {package}"):
            entries.check_package(name, package, "f")
