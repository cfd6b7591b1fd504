"""Which files a program can import, in small trees, and what of a file counts."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pipelines.code.closure import Project, Used
from pipelines.code.syntax import digest, parse_code

OF = "extract/encoders/"
INIT = f"{OF}__init__.py"
# A program, a registry of three families in it, and what they share.
TREE = {
    "pipelines/__init__.py": "",
    "pipelines/run.py": "import json\n\nfrom extract.encoders import load\n\nprint(load(json.loads('1')))\n",
    "extract/__init__.py": "",
    INIT: '''"""Encoders."""

from extract.encoders import dino, mae
from extract.encoders.simmim import SimMIM
from store import digest

ENCODERS: dict[str, object] = {
    **mae.ENCODERS,
    **dino.ENCODERS,
    'simmim': SimMIM,
}


def load(name):
    return digest(ENCODERS[name])


__all__ = ['ENCODERS', 'SimMIM', 'load']
''',
    "store/__init__.py": "def digest(x):\n    return x\n",
    f"{OF}mae.py": "from extract.encoders.shared import norm\n\nENCODERS = {'mae-b16': norm(1), 'mae-l': 2}\n",
    f"{OF}dino.py": "from extract.encoders.shared import norm\n\nENCODERS = {'dino-b16': norm(3)}\n",
    f"{OF}simmim.py": "class SimMIM:\n    pass\n",
    f"{OF}shared.py": "def norm(x):\n    return x\n",
}
CORE = set(list(TREE)[:5])
MAE = {("extract.encoders", "ENCODERS"): ("mae-b16",)}


def laid(folder: Path, tree: Mapping[str, str]) -> Path:
    for name, text in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return laid(tmp_path, TREE)


def digests(folder: Path, *modules: str, used: Used | None = None) -> dict[str, str | None]:
    return Project(folder).digests(modules or ("pipelines.run",), used or {})


@pytest.mark.parametrize(
    ("key", "leaves"), [(None, "dino mae simmim shared"), ("mae-b16", "mae shared"), ("simmim", "simmim"), ("none", "")]
)
def test_all_that_is_imported_without_leaves_that_are_not_used(key: str | None, leaves: str, folder: Path) -> None:
    result = digests(folder, used={} if key is None else {("extract.encoders", "ENCODERS"): (key,)})
    assert set(result) == CORE | {f"{OF}{name}.py" for name in leaves.split()}
    assert list(result) == sorted(result)


@pytest.mark.parametrize(
    ("program", "reached"),
    [
        ("def main():\n    from store.later import x\n", "later"),
        ("if 1 > 2:\n    import store.later as lazy\n", "later"),
        ("class A:\n    def b(self):\n        from store.later import c\n", "later"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import store.later\n", "later"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import store.later\nimport store", ""),
        ("from store.deep import more", "deep/__init__ deep/more"),
        ("import store.deep.leaf", "later deep/__init__ deep/leaf deep/more"),
    ],
)
def test_what_is_imported_at_some_time_counts_with_its_packages(program: str, reached: str, folder: Path) -> None:
    deep = {"__init__": "from . import more", "leaf": "from ..later import x", "more": ""}
    laid(folder, {f"store/deep/{name}.py": text for name, text in deep.items()})
    laid(folder, {"store/later.py": "", "pipelines/run.py": program})
    common = {"pipelines/__init__.py", "pipelines/run.py", "store/__init__.py"}
    assert set(digests(folder)) == common | {f"store/{name}.py" for name in reached.split()}


@pytest.mark.parametrize(
    ("file", "before", "after", "leaf"),
    [
        *(
            (f"{OF}dino.py", "{'dino-b16': norm(3)}", keys, "dino")
            for keys in ("{f'dino-{size}': 1 for size in 'bl'}", "{'a' + 'b': 1}", "{**OTHERS}")
        ),
        (INIT, "'simmim': SimMIM", "NAME: SimMIM", "simmim"),
        (INIT, "__all__ =", "DEFAULT = SimMIM\n__all__ =", "simmim"),
        (f"{OF}shared.py", "return x", "from extract.encoders import SimMIM", "simmim"),
        (f"{OF}shared.py", "def", "from extract import encoders\n\n\ndef", "simmim"),
        (f"{OF}shared.py", "def", "from extract.encoders.dino import ENCODERS\n\n\ndef", "dino"),
    ],
)
def test_a_leaf_counts_whose_keys_are_computed_or_that_is_used_in_another_way(
    file: str, before: str, after: str, leaf: str, folder: Path
) -> None:
    """By the registry's module itself, by a name that others import from it, wherever that is found, or from the leaf."""
    assert f"{OF}{leaf}.py" not in digests(folder, used=MAE)
    (folder / file).write_text(TREE[file].replace(before, after))
    assert f"{OF}{leaf}.py" in digests(folder, used=MAE)


def with_entries(text: str) -> str:
    text = text.replace("import dino, mae", "import dino, ibot, mae").replace("'load']", "'CAPI', 'load']")
    text = text.replace("    **dino", "    **ibot.ENCODERS,\n    'capi': CAPI,\n    **dino")
    return text.replace("from store", "from extract.encoders.capi import CAPI\nfrom store")


@pytest.mark.parametrize(
    ("file", "change", "changed"),
    [
        (f"{OF}mae.py", lambda text: text.replace("norm(1)", "norm(5)"), [f"{OF}mae.py"]),
        (f"{OF}dino.py", lambda text: f"{text}X = 1\n", []),
        (INIT, lambda text: text.replace("def load(name)", "def load(name, seed=0)"), [INIT]),
        (INIT, with_entries, []),
        ("pipelines/page.css", lambda text: f"{text} b {{}}", ["pipelines/page.css"]),
    ],
)
def test_an_edit_changes_digests_of_those_who_use_it(
    file: str, change: Callable[[str], str], changed: list[str], folder: Path
) -> None:
    laid(
        folder,
        {f"{OF}ibot.py": "ENCODERS = {'ibot': 1}\n", f"{OF}capi.py": "class CAPI:\n    pass\n", "pipelines/page.css": ""},
    )
    before = digests(folder, used=MAE)
    (folder / file).write_text(change((folder / file).read_text()))
    after = digests(folder, used=MAE)
    assert [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)] == changed


def test_a_registry_that_is_gone_is_an_error_of_ours(folder: Path) -> None:
    with pytest.raises(LookupError, match="no dictionary MODELS"):
        digests(folder, used={("extract.encoders", "MODELS"): ()})


class TestAFileOfOnesOwn:
    def test_it_counts_with_what_it_imports(self, folder: Path) -> None:
        imports = "from heads.powers import mean\nfrom extract.encoders import mae\nA = dict() | {}\nB = tuple(A) + (1,)\n"
        laid(folder, {"heads/gem.py": imports, "heads/powers.py": ""})
        assert {"heads/gem.py", "heads/powers.py", f"{OF}mae.py"} <= set(digests(folder, "store", "heads/gem.py", used=MAE))

    @pytest.mark.parametrize("text", ["import beyondcls as b\nA = b.SimMIM\n", "from beyondcls import SimMIM\n"])
    def test_what_it_takes_through_the_front_door_counts(self, folder: Path, text: str) -> None:
        laid(folder, {"heads/gem.py": text})
        assert set(digests(folder, "heads/gem.py")) == {"heads/gem.py"}
        front_door = "from store import nothing\n_HOME = {'SimMIM': 'extract.encoders', 'load': 'extract.encoders'}\n"
        laid(folder, {"beyondcls.py": front_door})
        assert f"{OF}simmim.py" in digests(folder, "heads/gem.py", used=MAE)
        laid(folder, {"heads/gem.py": text.replace("SimMIM", "load")})
        assert f"{OF}simmim.py" not in digests(folder, "heads/gem.py", used=MAE)

    def test_it_is_not_there_or_no_python(self, folder: Path) -> None:
        assert digests(folder, "store", "heads/gem.py")["heads/gem.py"] is None
        before = digests(laid(folder, {"heads/gem.py": "def (\n"}), "heads/gem.py")
        assert digests(laid(folder, {"heads/gem.py": "def )\n"}), "heads/gem.py") != before


# What of a file counts.
FILE = '''\
"""What it does."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store import FeatureStore


def scaled(x: int, by: float = 2.0) -> "str":
    """Longer."""
    if x:
        y = {**{}, "a": f"{x!r:>{by}}", "b": b"\\x00", "ü": (None, ..., 1j)}
        return str(y)
    return "no"
'''


def of(text: str) -> str:
    return digest(parse_code(text))


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ("    if x:", "    # whether there is one\n    if x:"),
        ('"""Longer."""', '"""Shorter: `x` times `by`."""'),
        ('str(y)\n    return "no"', "(str(\n            y))\n    return 'no'"),
        ("    if x:", '    "a note"\n    if x:'),
        ("import FeatureStore", "import FeatureStore, Loader"),
    ],
)
def test_words_do_not_count(there: str, then: str) -> None:
    assert there in FILE
    assert of(FILE.replace(there, then)) == of(FILE)


@pytest.mark.parametrize(
    ("there", "then"),
    [
        ("2.0", "2"),
        ('"no"', 'b"no"'),
        ("!r", "!s"),
        ("None, ...", "..., None"),
        ("if x:", "if not x:"),
        ("x: int", "x: str"),
        ("scaled", "scale"),
        ("    if x:", "    ...\n    if x:"),
        ("if TYPE_CHECKING:", "if scaled:"),
    ],
)
def test_what_is_run_counts(there: str, then: str) -> None:
    assert there in FILE
    assert of(FILE.replace(there, then)) != of(FILE)


def test_else_of_what_is_for_types_is_run() -> None:
    assert of("if typing.TYPE_CHECKING:\n    a = 1\nelse:\n    a = 2\n") == of("a = 2\n")


def test_versions_of_python_agree() -> None:
    """Written under 3.11, and the same under 3.12 and 3.13, whose trees have other empty fields."""
    assert of(FILE) == "f804d80939f8f6d4c1376a364648f26c"


def test_words_do_not_count_in_any_block() -> None:
    heads = ("if a:", "else:", "for b in a:", "while a:", "with a:", "try:", "except A:", "finally:", "class A:")
    heads += ("async def a():",)
    body = "".join(f"{head}\n    {{text}}a\n" for head in heads) + "match a:\n    case 1:\n        {text}a\n"
    assert of(body.format(text="'why';")) == of(body.format(text=""))
