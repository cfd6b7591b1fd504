"""All files of the project that a program can import: at import time, under a condition, or when a function runs.

A registry's module counts as it is for users of only some of its entries. A registry is a literal dictionary in a module
(`CODECS = {…}`, or `ENCODERS = Registry(…) | {…}`, which takes entries of other packages), whose values come from leaves, other
modules. What is not used is removed from the tree: entries, the imports that only they need, and their names in `__all__`.
"""

import ast
import hashlib
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.code.syntax import DIGITS, digest, parse_code, statements_of
from store.plugins import METRICS, declared

OWN = "heads"  # custom aggregators
PACKAGES = ("extract", OWN, "pipelines", "probe", "store")
FACADE, HOMES = "beyondcls", "_HOME"  # a module that imports requested names lazily, from a dictionary of names and modules
BESIDE = (".css", ".csv", ".jinja", ".js")  # files of the report that modules in their folder read
EVERYTHING = "*"

# What a module imports: (module, name in it), or EVERYTHING for the module itself; no name of a package that is only run.
Import = tuple[str, str]
# Module and name of a registry -> keys of the entries that are used; all of a registry that is not mentioned.
Used = Mapping[tuple[str, str], Collection[str]]


class Project:
    """The source of a program, and of the user's own files in a project's folder. Each file is read once.

    Modules are known by their names, and files outside of packages by their paths.
    """

    def __init__(self, folder: Path, program: Path | None = None):
        """The user's files are in `folder`, and there alone; the program's packages in `program`: the same where it is None."""
        self.folder, self.program, self.read = folder, program or folder, cache(self._read)
        # By tree: most units have most of them in common.
        self._digest, self._groups, self._imports = cache(digest), cache(_groups_in), cache(self._find_imports)
        self._pruned, self._beside = cache(self._prune), cache(self._digests_beside)
        self.declared = cache(declared)  # all installed packages are looked through

    def digests(self, modules: Iterable[str], used: Used) -> dict[str, str | None]:
        """Digests of all files that some modules can import, by path, sorted; None for a missing file.

        Those of entries of other packages are under `PACKAGE: GROUP.NAME`.

        Args:
            modules: of a program, and files next to them.
            used: entries of registries that it uses.
        """
        digests: dict[str, str | None] = {}
        files: dict[str, tuple[Path, ast.Module]] = {}  # and trees, without unused entries
        requested: dict[str, set[str]] = {}  # names that are imported from each module
        waiting = [(module, "") for module in modules]
        while waiting:
            name, imported_name = waiting.pop()
            names = requested.setdefault(name, set())
            if (found := self.read(name)) is None:
                digests |= {name: None} if name.endswith(".py") else {}
            elif imported_name not in names:
                names.add(imported_name)
                entries = frozenset((registry, frozenset(keys)) for (module, registry), keys in used.items() if module == name)
                file, tree = found[0], self._pruned(found[1], entries, frozenset(names)) if entries else found[1]
                waiting += self._imports(name, tree) if files.get(name) != (file, tree) else ()
                files[name] = file, tree
        for name, (file, tree) in files.items():
            digests |= {self._relative(file): self._digest(tree)} | self._beside(file.parent)
            for registry, group in self._groups(tree):  # of METRICS, all are computed
                named, ours = used.get((name, registry), ()), self.keys_of(name, registry) or ()
                for plugin in self.declared(group):
                    if (group in METRICS or plugin.name in named) and plugin.name not in ours:
                        digests[f"{plugin.package}: {group}.{plugin.name}"] = plugin.digest()[:DIGITS]
        return dict(sorted(digests.items()))

    def keys_of(self, module: str, name: str) -> set[str] | None:
        """Keys of a dictionary of a module; None if not all of them are literal in the source."""
        content = None if (found := self.read(module)) is None else _dictionary(_assigned(found[1]).get(name))
        keys = [None] if content is None else [key.value if isinstance(key, ast.Constant) else None for key in content.keys]
        return None if None in keys else {str(key) for key in keys}

    def _read(self, name: str) -> tuple[Path, ast.Module] | None:
        """File and tree of a module; None for others than ours, and where there is none.

        One that is not valid Python counts by its text, as running it reports the error.
        """
        is_file, path, package = name.endswith(".py"), name.replace(".", "/"), name.split(".")[0]
        root = self.folder if is_file or package == OWN else self.program
        places = (name,) if is_file else (f"{path}/__init__.py", f"{path}.py")
        file = next((root / place for place in places if (root / place).is_file()), None)
        if file is None or not (is_file or package in PACKAGES or name == FACADE):
            return None
        text = file.read_text(encoding="utf-8")
        try:
            return file, parse_code(text)
        except SyntaxError:
            return file, ast.Module([ast.Return(ast.Constant(text))], [])  # as no module that can be parsed

    def _find_imports(self, name: str, tree: ast.Module) -> list[Import]:
        """Imports of the module `name`, anywhere in it, and its package."""
        imports = [(name.rpartition(".")[0], "")]
        for node in statements_of(tree):
            if isinstance(node, ast.Import):
                imports += [(alias.name, EVERYTHING) for alias in node.names]
                if any(alias.name == FACADE for alias in node.names):  # whose names are attributes of whatever it is called
                    attributes = {inner.attr for inner in ast.walk(tree) if isinstance(inner, ast.Attribute)}
                    imports += [one for attribute in attributes for one in self._imports_of_name(FACADE, attribute)]
            elif isinstance(node, ast.ImportFrom):
                found = self.read(name)
                package = name if found is not None and found[0].name == "__init__.py" else name.rpartition(".")[0]
                above = package.rsplit(".", node.level - 1)[0] if node.level else ""
                module = f"{above}.{node.module or ''}".strip(".")
                imports += [one for alias in node.names for one in self._imports_of_name(module, alias.name)]
        return imports

    def _imports_of_name(self, module: str, name: str) -> list[Import]:
        """Imports of `from module import name`."""
        if module == FACADE and (found := self.read(FACADE)) is not None:
            module = ast.literal_eval(_assigned(found[1])[HOMES].value).get(name, "")
        return [(module, name), *([(f"{module}.{name}", EVERYTHING)] if self.read(f"{module}.{name}") else [])]

    def _prune(
        self, tree: ast.Module, entries: Collection[tuple[str, Collection[str]]], requested: Collection[str]
    ) -> ast.Module:
        """A copy of a registry's module without entries that are not among the used ones, and without all that only they need.

        Names that other modules request of this one stay; all do if one imports the module itself.
        """
        module, unused = ast.Module([copy(statement) for statement in tree.body], []), list[ast.expr]()
        assigned = _assigned(module)
        imports = [one for one in module.body if isinstance(one, ast.ImportFrom) and not one.level]
        homes = {alias.asname or alias.name: f"{one.module}.{alias.name}" for one in imports for alias in one.names}
        for name, used in entries:
            if (content := _dictionary(assigned.get(name))) is None:
                raise LookupError(f"no dictionary {name} is written out in the module; units.py names a registry that is gone")
            pairs = list(zip(content.keys, content.values, strict=True))
            kept = [(key, value) for key, value in pairs if self._is_used(key, value, used, homes)]
            unused += [value for pair in pairs if pair not in kept for value in pair if value is not None]
            remaining = ast.Dict([key for key, _ in kept], [value for _, value in kept])
            joined = assigned[name].value
            assigned[name].value = ast.BinOp(joined.left, joined.op, remaining) if isinstance(joined, ast.BinOp) else remaining
        removed = set() if EVERYTHING in requested else (_names_in(unused) - _names_in([module])) & homes.keys() - {*requested}
        for one in imports:
            one.names = [alias for alias in one.names if (alias.asname or alias.name) not in removed]
        if (exported := assigned.get("__all__")) and isinstance(exported.value, ast.List | ast.Tuple):
            exported.value = copy(exported.value)
            exported.value.elts = [item for item in exported.value.elts if getattr(item, "value", None) not in removed]
        module.body = [statement for statement in module.body if statement not in imports or statement.names]
        return module

    def _is_used(self, key: ast.expr | None, value: ast.expr, used: Collection[str], homes: Mapping[str, str]) -> bool:
        """Whether an entry of a registry is; a leaf such as `**mae.ENCODERS` is so where its keys are not known."""
        if isinstance(key, ast.Constant):
            return key.value in used
        leaf, _, name = ast.unparse(value).rpartition(".")
        included = self.keys_of(homes[leaf], name) if key is None and leaf in homes else None
        return included is None or not included.isdisjoint(used)

    def _digests_beside(self, folder: Path) -> dict[str, str]:
        files = [path for path in folder.iterdir() if path.suffix in BESIDE]
        return {self._relative(path): hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS] for path in files}

    def _relative(self, file: Path) -> str:
        roots = [root for root in (self.folder, self.program) if file.is_relative_to(root)]  # either may be below the other
        return file.relative_to(max(roots, key=lambda root: len(root.parts))).as_posix() if roots else file.as_posix()


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for tree in nodes for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _assigned(module: ast.Module) -> dict[str, Any]:
    """Statements that assign a value to one name, by that name."""
    assigned = {}
    for statement in module.body:
        match statement:
            case ast.Assign([ast.Name(name)]) | ast.AnnAssign(ast.Name(name)):
                assigned[name] = statement
    return assigned


def _dictionary(statement: Any) -> ast.Dict | None:
    """The dictionary that a statement assigns, alone or as `Registry(…) | {…}`."""
    value = getattr(statement, "value", None)
    value = value.right if isinstance(value, ast.BinOp) else value
    return value if isinstance(value, ast.Dict) else None


def _groups_in(module: ast.Module) -> list[tuple[str, str]]:
    """Registries of a module that take entries of other packages, each with its group of entry points."""
    groups = []
    for name, statement in _assigned(module).items():
        match statement.value:
            case ast.BinOp(ast.Call(args=[ast.Constant(str(group)), *_])):
                groups.append((name, group))
    return groups
