"""All files of the project that a program can import: at import time, under a condition, or when a function runs."""

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from pipelines.code.registries import EVERYTHING, Used, groups_in, keys_in, without_unused
from pipelines.code.syntax import DIGITS, digest, nodes_of, parse_code, statements_of
from store.plugins import METRICS, declared

OWN = "heads"  # custom aggregators
PACKAGES = ("extract", OWN, "pipelines", "probe", "store")
FACADE, HOMES = "beyondcls", "_HOME"  # a module that imports requested names lazily, from a dictionary of names and modules
BESIDE = (".css", ".csv", ".jinja", ".js")  # files of the report that modules in their folder read

# What a module imports: (module, name in it), or EVERYTHING for the module itself.
Import = tuple[str, str]


class Project:
    """The source of a program, and of the user's own files in a project's folder. Each file is read once.

    Modules are known by their names, and files outside of packages by their paths.
    """

    def __init__(self, folder: Path, program: Path | None = None):
        """The user's files are in `folder`, and there alone; the program's packages in `program`: the same where it is None."""
        self.folder, self.program = folder, program or folder
        self.file, self.tree = cache(self._find_file), cache(self._parse)
        # By tree: most units have most of them in common.
        self._digest, self._groups, self._imported = cache(digest), cache(groups_in), cache(self._imports_of_tree)
        self._lazy = cache(lambda tree: any(map(_is_lazy, tree.body)))
        self._relative, self._beside = cache(self._relative_path), cache(self._digests_beside)
        self._pruned = cache(self._prune)
        self.declared = cache(declared)  # all installed packages are looked through

    def digests(self, modules: Iterable[str], used: Used) -> dict[str, str | None]:
        """Digests of all files that some modules can import, by path, sorted; None for a missing file.

        Those of entries of other packages are under `PACKAGE: GROUP.NAME`.

        Args:
            modules: of a program, and files next to them.
            used: entries of registries that it uses.
        """
        roots = list(modules)
        requested: dict[str, set[str]] = {}
        while True:
            trees, asks = self._reach_modules(roots, used, requested)
            if asks == requested:
                break
            requested = asks  # which may let an import stay, that asks for more
        digests: dict[str, str | None] = {name: None for name in roots if name.endswith(".py") and self.file(name) is None}
        for name, tree in trees.items():
            file = self.file(name)
            assert file is not None, name
            digests[self._relative(file)] = self._digest(tree)
            digests |= self._digests_of_packages(name, tree, used)
            digests |= self._beside(file.parent)
        return dict(sorted(digests.items()))

    def keys(self, module: str, name: str) -> list[str]:
        """Keys of a registry that are literal in the source, sorted."""
        return sorted(self._keys_of(module, name) or ())

    def _reach_modules(
        self, roots: Iterable[str], used: Used, requested: Mapping[str, Collection[str]]
    ) -> tuple[dict[str, ast.Module], dict[str, set[str]]]:
        """Trees of all modules that can be imported, without unused entries, and the names imported from each.

        Args:
            requested: names that are known to be imported, by module.
        """
        trees: dict[str, ast.Module] = {}
        asks: dict[str, set[str]] = {}
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name in trees or self.file(name) is None:
                continue
            if not name.endswith(".py") and (parent := name.rpartition(".")[0]):
                waiting.append(parent)
            trees[name] = self._tree_as_used(name, used, requested.get(name, ()))
            for module, imported_name in self._imports(name, trees[name], requested.get(name, ())):
                asks.setdefault(module, set()).add(imported_name)
                waiting.append(module)
        return trees, asks

    def _tree_as_used(self, name: str, used: Used, requested: Collection[str]) -> ast.Module:
        entries = frozenset((registry, frozenset(keys)) for (module, registry), keys in used.items() if module == name)
        return self._pruned(name, entries, frozenset(requested)) if entries else self.tree(name)

    def _imports(self, name: str, tree: ast.Module, requested: Collection[str]) -> Iterable[Import]:
        """Imports of the project's modules; those in a module's `__getattr__` only if their names are requested."""
        return self._imported(name, tree, frozenset(requested) if self._lazy(tree) else frozenset())

    def _imports_of_tree(self, name: str, tree: ast.Module, requested: Collection[str]) -> list[Import]:
        statements = list(_imports_in(tree, requested))
        imports = [item for statement in statements for item in self._imports_of_statement(statement, name)]
        return imports + list(self._imports_through_facade(tree, statements))

    def _imports_of_statement(self, node: ast.Import | ast.ImportFrom, name: str) -> Iterator[Import]:
        """Imports of a statement in the module `name`."""
        if isinstance(node, ast.Import):
            yield from ((alias.name, EVERYTHING) for alias in node.names if alias.name.split(".")[0] in PACKAGES)
        else:
            module = self._absolute_name(node, name)
            for alias in node.names:
                yield from self._imports_of_name(module, alias.name)

    def _imports_of_name(self, module: str, name: str) -> Iterator[Import]:
        """Imports of `from module import name`."""
        if module == FACADE:
            home = self._modules_of_facade().get(name)
            if home is not None:
                yield from self._imports_of_name(home, name)
        elif module.split(".")[0] in PACKAGES:
            yield module, name
            if self.file(f"{module}.{name}") is not None:
                yield f"{module}.{name}", EVERYTHING

    def _imports_through_facade(self, tree: ast.Module, statements: Iterable[ast.AST]) -> Iterator[Import]:
        """Imports of `beyondcls.NAME` in code with `import beyondcls` among its statements."""
        imported = [alias for statement in statements if isinstance(statement, ast.Import) for alias in statement.names]
        called = {alias.asname or alias.name for alias in imported if alias.name == FACADE}
        for node in nodes_of(tree) if called else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in called:
                yield from self._imports_of_name(FACADE, node.attr)

    def _modules_of_facade(self) -> dict[str, str]:
        """Modules by the names that the facade exports; empty without a facade."""
        if self.file(FACADE) is None:
            return {}
        tree = self.tree(FACADE)
        content = next(s.value for s in tree.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == HOMES)
        return ast.literal_eval(content)

    def _absolute_name(self, node: ast.ImportFrom, name: str) -> str:
        """The module that `from module import …` names, in the module `name`."""
        if not node.level:
            return node.module or ""
        file = self.file(name)
        package = name if file is not None and file.name == "__init__.py" else name.rpartition(".")[0]
        above = package.split(".")[: len(package.split(".")) + 1 - node.level]
        return ".".join([*above, *([node.module] if node.module else [])])

    def _find_file(self, name: str) -> Path | None:
        path = name.replace(".", "/")
        places = (name,) if name.endswith(".py") else (f"{path}/__init__.py", f"{path}.py")
        root = self.folder if name.endswith(".py") or name.split(".")[0] == OWN else self.program
        return next((root / place for place in places if (root / place).is_file()), None)

    def _parse(self, name: str) -> ast.Module:
        """The tree of a file; one that is not valid Python counts by its text, as running it reports the error."""
        file = self.file(name)
        assert file is not None, name
        text = file.read_text(encoding="utf-8")
        try:
            return parse_code(text)
        except SyntaxError:
            return ast.Module([ast.Return(ast.Constant(text))], [])  # as no module that can be parsed

    def _prune(self, name: str, entries: frozenset[tuple[str, frozenset[str]]], requested: frozenset[str]) -> ast.Module:
        return without_unused(self.tree(name), dict(entries), requested, self._keys_of)

    def _keys_of(self, module: str, name: str) -> set[str] | None:
        return None if self.file(module) is None else keys_in(self.tree(module), name)

    def _digests_of_packages(self, name: str, tree: ast.Module, used: Used) -> dict[str, str]:
        """Digests of the used entries of other packages in the registries of a module; of METRICS, all: they are computed."""
        digests = {}
        for registry, group in self._groups(tree).items():
            names, own = used.get((name, registry), ()), self._keys_of(name, registry) or ()
            for plugin in self.declared(group):
                if (plugin.name in names or group in METRICS) and plugin.name not in own:
                    digests[f"{plugin.package}: {group}.{plugin.name}"] = plugin.digest()[:DIGITS]
        return digests

    def _digests_beside(self, folder: Path) -> dict[str, str]:
        return {self._relative(path): _file_digest(path) for path in folder.iterdir() if path.suffix in BESIDE}

    def _relative_path(self, file: Path) -> str:
        roots = [root for root in (self.folder, self.program) if file.is_relative_to(root)]  # either may be below the other
        return file.relative_to(max(roots, key=lambda root: len(root.parts))).as_posix() if roots else file.as_posix()


def _is_lazy(statement: ast.stmt) -> bool:
    """Whether this is a module's `__getattr__`, which imports names on request."""
    return isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__"


def _imports_in(tree: ast.Module, requested: Collection[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports of a module, except those in its `__getattr__` whose names are not requested."""
    for statement in tree.body:
        skips = _is_lazy(statement) and EVERYTHING not in requested
        for node in statements_of(statement):
            unasked = skips and isinstance(node, ast.ImportFrom) and all(alias.name not in requested for alias in node.names)
            if isinstance(node, ast.Import | ast.ImportFrom) and not unasked:
                yield node


def _file_digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:DIGITS]
