"""The shape of the repository: packages, import direction, front door."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from setuptools import find_packages
from setuptools.config.setupcfg import read_configuration

import beyondcls
from tests.decoys import OUTPUTS, ROOT, lay_decoys
from tests.machines.machine import git
from tests.machines.project import working_tree

LAYERS = {"store": {"store"}, "extract": {"store", "extract"}, "probe": {"store", "probe"}}
SOURCES = [p for layer in ("store", "extract", "probe", "pipelines") for p in (ROOT / layer).rglob("*.py")]
FRONT = [*(ROOT / "beyondcls").rglob("*.py")]
# Files of the program by the name under which they are imported.
MODULES = {p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): p for p in SOURCES}


def imported_by(path: Path) -> set[str]:
    """Modules that a file imports, anywhere in it; what it imports from other packages counts as a part of them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in inner}
    return names


def packages(path: Path) -> set[str]:
    """Top-level names of what a file imports."""
    return {name.partition(".")[0] for name in imported_by(path)}


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_downwards(layer):
    ours = {"store", "extract", "probe", "pipelines", "beyondcls", "benchmarks", "quickstart", "tests"}
    for path in (ROOT / layer).rglob("*.py"):
        assert packages(path) & ours <= LAYERS[layer], path


def test_only_the_first_stage_imports_timm():
    for path in SOURCES:
        relative, names = path.relative_to(ROOT).as_posix(), packages(path)
        if names & {"timm", "torchvision", "webdataset"}:
            only_detects = relative.startswith("probe/detection/") and not names & {"timm", "webdataset"}
            assert only_detects or relative.startswith("extract/"), relative


def test_what_is_no_command_is_in_a_room_that_says_what_it_is():
    for path in set((ROOT / "pipelines").glob("*.py")) - {ROOT / "pipelines/__init__.py", ROOT / "pipelines/cli.py"}:
        assert "main" in {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}, path
    for path in (ROOT / "pipelines").glob("*/__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_setup_cfg_packages_match_the_tree():
    include = read_configuration(ROOT / "setup.cfg")["options"]["packages"]
    folders = {p.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in (*SOURCES, *FRONT)}
    found = find_packages(str(ROOT), include=["beyondcls*", "store*", "extract*", "probe*", "pipelines*"])
    assert set(include) == folders == set(found)


def test_setup_cfg_has_every_file_beside_modules():
    """Or an installation lacks it."""
    patterns = read_configuration(ROOT / "setup.cfg")["options"]["package_data"]
    for folder in {path.parent for path in (*SOURCES, *FRONT)}:
        package = folder.relative_to(ROOT).as_posix().replace("/", ".")
        files = {path for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc")}
        assert files == {path for pattern in patterns.get(package, ()) for path in folder.glob(pattern)}, package


def test_front_door_has_every_public_name():
    assert set(beyondcls.__all__) == set(beyondcls._HOME) == set(dir(beyondcls))
    for name in beyondcls.__all__:
        assert getattr(beyondcls, name) is not None
    assert beyondcls.__version__ == read_configuration(ROOT / "setup.cfg")["metadata"]["version"]
    with pytest.raises(AttributeError, match=r"no attribute 'open_stroe'; it has: .*open_store"):
        _ = beyondcls.open_stroe


def test_outputs_of_a_pipeline_are_all_known():
    """Those that DVC writes are ignored by git, removed by `make clean`, and laid as decoys."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if re.fullmatch(r"/[a-z_]+/", line)}
    pipelines = [yaml.safe_load((ROOT / name).read_text())["stages"] for name in ("dvc.yaml", "paper/tables.yaml")]
    outs = (stage.get("do", stage) for stages in pipelines for stage in stages.values())
    written = {
        next(iter(out)) if isinstance(out, dict) else out for s in outs for k in ("outs", "metrics") for out in s.get(k, [])
    }
    assert {out.split("/")[0] for out in written} == set(OUTPUTS) == ignored


def test_tests_run_where_no_pipeline_ran():
    assert ROOT not in (Path.cwd(), *Path.cwd().parents)
    assert Path("quickstart").samefile(ROOT / "quickstart")
    assert not {path.name for path in Path().iterdir()} & {*OUTPUTS, "dvc.lock", "params.yaml"}


def test_a_copy_of_the_tree_has_no_outputs(tmp_path):
    git(tmp_path, "init", "-q")
    for name in (".gitignore", "dvc.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    git(tmp_path, "add", "dvc.yaml")
    lay_decoys(tmp_path)
    assert working_tree(tmp_path) == [".gitignore", "dvc.yaml"]


def test_no_module_imports_what_imports_it():
    graph = {name: imported_by(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    list(TopologicalSorter(graph).static_order())  # a circle is an error that names it


FLOORS = (
    ("errors", "kernels", "plugins", "shown", "user_code"),
    ("places",),
    ("codecs", "format", "truths"),
    ("writing", "loading"),
    ("moving", "exchange"),
)


def test_rooms_of_the_store_import_downwards():
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    rooms = {p.name.removesuffix(".py") for p in (ROOT / "store").iterdir() if not p.name.startswith("_")}
    assert rooms == {*floor, "environment", "onednn"}
    for name, path in MODULES.items():
        room = name.partition(".")[2].partition(".")[0]
        if name.startswith("store.") and room in floor:
            below = {other.split(".")[1] for other in imported_by(path) if other.startswith("store.")}
            assert all(other == room or floor[other] <= floor[room] for other in below), (name, below)
