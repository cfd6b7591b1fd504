"""Which files a program can import, in small trees."""

import pytest

from tests.pipelines.code.tree import CORE, TREE, digests, laid, using

LEAVES = {f"extract/encoders/{name}.py" for name in ("dino", "mae", "simmim", "shared")}


def edited(folder, name, change):
    """Files whose digest an edit of one changes, for users of `mae-b16`; those that come and go included."""
    before = digests(folder, used=using("mae-b16"))
    file = folder / name
    file.write_text(change(file.read_text() if file.exists() else ""))
    after = digests(folder, used=using("mae-b16"))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.fixture
def folder(tmp_path):
    return laid(tmp_path)


def test_all_that_is_imported(folder):
    result = digests(folder)
    assert set(result) == CORE | LEAVES
    assert list(result) == sorted(result)


def test_packages_of_modules_count(folder):
    (folder / "store/deep").mkdir()
    laid(folder, {"store/deep/__init__.py": "import store.beside", "store/deep/leaf.py": "", "store/beside.py": ""})
    expected = {"store/__init__.py", "store/beside.py", "store/deep/__init__.py", "store/deep/leaf.py"}
    assert set(digests(folder, "store.deep.leaf")) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "def main():\n    from store.lazy import x\n",
        "def main():\n    import store.lazy\n",
        "try:\n    from store import lazy\nexcept ImportError:\n    lazy = None\n",
        "if 1 > 2:\n    import store.lazy as lazy\n",
        "class A:\n    def b(self):\n        from store.lazy import c\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import store.lazy\n",
    ],
)
def test_what_is_imported_later_or_under_a_condition_counts(folder, statement):
    (folder / "store/lazy.py").write_text("x = c = 1\n")
    (folder / "pipelines/run.py").write_text(statement)
    assert set(digests(folder)) == {"pipelines/__init__.py", "pipelines/run.py", "store/__init__.py", "store/lazy.py"}


def test_relative_imports(folder):
    (folder / "extract/encoders/shared.py").write_text("from ..other import x\nfrom . import mae\n")
    (folder / "extract/other.py").write_text("")
    assert {"extract/other.py", "extract/encoders/mae.py"} <= set(digests(folder, used=using("mae-b16")))


def test_what_is_for_types_alone_does_not_count(folder):
    (folder / "store/types.py").write_text("")
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import store.types\n" + TREE["pipelines/run.py"]
    (folder / "pipelines/run.py").write_text(text)
    assert "store/types.py" not in digests(folder)


def test_what_a_package_gives_when_it_is_asked(folder):
    lazy = "def __getattr__(name):\n    if name == 'Writer':\n        from store.writer import Writer\n        return Writer\n"
    (folder / "store/__init__.py").write_text(f"def digest(x):\n    return x\n\n\n{lazy}")
    (folder / "store/writer.py").write_text("class Writer:\n    pass\n")
    assert "store/writer.py" not in digests(folder)
    for statement in ("from store import Writer", "import store", "def f():\n    from store import Writer"):
        (folder / "pipelines/run.py").write_text(f"{statement}\n")
        assert "store/writer.py" in digests(folder), statement


def test_a_leaf_that_is_not_used_is_left_out(folder):
    assert set(digests(folder, used=using("mae-b16"))) == CORE | {f"extract/encoders/{n}.py" for n in ("mae", "shared")}
    assert set(digests(folder, used=using("simmim"))) == CORE | {"extract/encoders/simmim.py"}
    assert set(digests(folder, used=using())) == CORE


@pytest.mark.parametrize(
    ("name", "change", "counts"),
    [
        ("mae", lambda text: text.replace("norm(1)", "norm(5)"), True),
        ("dino", lambda text: text + "X = 1\n", False),
        ("__init__", lambda text: text.replace("def load(name)", "def load(name, seed=0)"), True),
    ],
)
def test_an_edit_of_what_is_used_or_of_a_registry_s_module_changes_its_file_alone(name, change, counts, folder):
    file = f"extract/encoders/{name}.py"
    assert edited(folder, file, change) == ({file} if counts else set())


def test_a_new_entry_changes_nothing_for_others(folder):
    (folder / "extract/encoders/ibot.py").write_text("ENCODERS = {'ibot': 1}\n")
    (folder / "extract/encoders/capi.py").write_text("class CAPI:\n    pass\n")

    def with_entries(text):
        text = text.replace("import dino, mae", "import dino, ibot, mae").replace("'load']", "'CAPI', 'load']")
        text = text.replace("    **dino", "    **ibot.ENCODERS,\n    'capi': CAPI,\n    **dino")
        return text.replace("from store", "from extract.encoders.capi import CAPI\nfrom store")

    assert edited(folder, "extract/encoders/__init__.py", with_entries) == set()
    assert "extract/encoders/ibot.py" in digests(folder, used=using("ibot"))


@pytest.mark.parametrize("computed", ["{f'dino-{size}': 1 for size in 'bl'}", "{'a' + 'b': 1}", "made()", "{**OTHERS}"])
def test_a_leaf_whose_keys_the_source_does_not_tell_counts(folder, computed):
    (folder / "extract/encoders/dino.py").write_text(f"ENCODERS = {computed}\n")
    assert "extract/encoders/dino.py" in digests(folder, used=using("mae-b16"))


def test_an_entry_whose_key_is_computed_counts(folder):
    registry = folder / "extract/encoders/__init__.py"
    registry.write_text(registry.read_text().replace("'simmim': SimMIM", "NAME: SimMIM"))
    assert "extract/encoders/simmim.py" in digests(folder, used=using("mae-b16"))


def test_a_leaf_that_is_used_in_another_way_counts(folder):
    """By the registry's module itself, or by a name that others import from it, wherever that is found."""
    registry = folder / "extract/encoders/__init__.py"
    registry.write_text(registry.read_text() + "DEFAULT = SimMIM\n")
    assert "extract/encoders/simmim.py" in digests(folder, used=using("mae-b16"))
    laid(folder)
    (folder / "extract/encoders/shared.py").write_text("def norm(x):\n    from extract.encoders import SimMIM\n    return x\n")
    assert "extract/encoders/simmim.py" in digests(folder, used=using("mae-b16"))
    assert "extract/encoders/simmim.py" not in digests(folder, used=using())
    laid(folder)
    (folder / "extract/encoders/shared.py").write_text("from extract import encoders\n\n\ndef norm(x):\n    return x\n")
    assert "extract/encoders/simmim.py" in digests(folder, used=using("mae-b16"))


def test_a_leaf_that_others_import_from_its_file_counts(folder):
    (folder / "extract/encoders/shared.py").write_text("from extract.encoders.dino import ENCODERS\nnorm = int\n")
    assert "extract/encoders/dino.py" in digests(folder, used=using("mae-b16"))


def test_a_registry_that_is_gone_is_an_error_of_ours(folder):
    with pytest.raises(LookupError, match="no dictionary MODELS is written out"):
        digests(folder, used={("extract.encoders", "MODELS"): ()})


class TestAFileOfOnesOwn:
    def test_it_counts_with_what_it_imports(self, folder):
        laid(
            folder, {"heads/gem.py": "from heads.powers import mean\nfrom extract.encoders import mae\n", "heads/powers.py": ""}
        )
        result = digests(folder, "store", "heads/gem.py", used=using())
        assert {"heads/gem.py", "heads/powers.py", "extract/encoders/mae.py"} <= set(result)

    @pytest.mark.parametrize("text", ["import beyondcls as b\nA = b.SimMIM\n", "from beyondcls import SimMIM\n"])
    def test_what_it_takes_through_the_front_door_counts(self, folder, text):
        laid(folder, {"heads/gem.py": text})
        assert set(digests(folder, "heads/gem.py")) == {"heads/gem.py"}
        front_door = "from store import nothing\n_HOME = {'SimMIM': 'extract.encoders', 'load': 'extract.encoders'}\n"
        laid(folder, {"heads/gem.py": text, "beyondcls.py": front_door})
        assert "extract/encoders/simmim.py" in digests(folder, "heads/gem.py", used=using())
        laid(folder, {"heads/gem.py": text.replace("SimMIM", "load")})
        assert "extract/encoders/simmim.py" not in digests(folder, "heads/gem.py", used=using())

    def test_it_is_not_there_or_no_python(self, folder):
        assert digests(folder, "store", "heads/gem.py")["heads/gem.py"] is None
        laid(folder, {"heads/gem.py": "def (\n"})
        before = digests(folder, "heads/gem.py")
        laid(folder, {"heads/gem.py": "def )\n"})
        assert digests(folder, "heads/gem.py") != before


def test_what_lies_beside_a_module_and_is_no_python_counts(folder):
    (folder / "pipelines/page.css").write_text("a {}")
    before = digests(folder)
    assert "pipelines/page.css" in before
    (folder / "pipelines/page.css").write_text("b {}")
    assert {name for name, digest in digests(folder).items() if before[name] != digest} == {"pipelines/page.css"}
