"""The shape of the repository: packages, import direction, front door."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools import find_packages
from setuptools.config.setupcfg import read_configuration

import beyondcls

ROOT = Path(__file__).resolve().parents[1]
LAYERS = {"store": {"store"}, "extract": {"store", "extract"}, "probe": {"store", "probe"}}
SOURCES = [p for layer in ("store", "extract", "probe", "pipelines") for p in (ROOT / layer).rglob("*.py")]


def imports(path: Path) -> set[str]:
    """Top-level names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_downwards(layer):
    ours = {"store", "extract", "probe", "pipelines", "beyondcls"}
    for path in (ROOT / layer).rglob("*.py"):
        assert imports(path) & ours <= LAYERS[layer], path


def test_only_the_first_stage_imports_timm():
    for path in SOURCES:
        if imports(path) & {"timm", "torchvision", "webdataset"}:
            relative = path.relative_to(ROOT).as_posix()
            assert relative.startswith(("extract/", "pipelines/quickstart/")), relative


def test_setup_cfg_packages_match_the_tree():
    include = read_configuration(ROOT / "setup.cfg")["options"]["packages"]
    folders = {p.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in SOURCES}
    assert set(include) == folders == set(find_packages(str(ROOT), include=["store*", "extract*", "probe*", "pipelines*"]))


def test_front_door_has_every_public_name():
    assert set(beyondcls.__all__) == set(beyondcls._HOME) == set(dir(beyondcls))
    for name in beyondcls.__all__:
        assert getattr(beyondcls, name) is not None
    with pytest.raises(AttributeError, match=r"no attribute 'open_stroe'; it has: .*open_store"):
        _ = beyondcls.open_stroe


def test_front_door_imports_lazily():
    lazy = "assert not {'torch', 'timm', 'store'} & set(sys.modules)"
    script = f"import sys, beyondcls; {lazy}; beyondcls.open_store; print('timm' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
