"""All files of the project that a program can import: at once, under a condition, or when a function runs."""

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from pipelines.code.registries import EVERYTHING, Used, keys_in, without_unused
from pipelines.code.syntax import DIGITS, digest, parsed

PACKAGES = ("extract", "heads", "pipelines", "probe", "store")  # heads: aggregators of one's own
FACADE, HOMES = "beyondcls", "_HOME"  # a module that imports what is asked for, by a dictionary of names and modules
BESIDE = (".css", ".jinja", ".js")  # of the report, read by the modules in their folder

# What a module imports: (module, name in it), or EVERYTHING for the module itself.
Import = tuple[str, str]


class Project:
    """The source below a folder. Each file is read once.

    Modules go by their names, and files that are no modules of a package by their paths.
    """

    def __init__(self, root: Path):
        self.root = root
        self.file, self.tree = cache(self._file), cache(self._tree)
        self._digest, self._imported, self._pruned = cache(self._digest_of), cache(self._imports_of), cache(self._prune)

    def digests(self, modules: Iterable[str], used: Used) -> dict[str, str | None]:
        """Digests of all that some modules can import, by file, sorted; None of a file that is not there.

        Args:
            modules: of a program, and files beside them.
            used: entries of registries that it uses.
        """
        roots = list(modules)
        asked: dict[str, set[str]] = {}
        while True:
            trees, asks = self._reached(roots, used, asked)
            if asks == asked:
                break
            asked = asks  # which may let an import stay, that asks for more
        found: dict[str, str | None] = {name: None for name in roots if name.endswith(".py") and self.file(name) is None}
        for name, tree in trees.items():
            file = self.file(name)
            assert file is not None, name
            found[self._shown(file)] = self._digest(name) if tree is self.tree(name) else digest(tree)
            found |= {self._shown(other): _of_bytes(other) for other in file.parent.iterdir() if other.suffix in BESIDE}
        return dict(sorted(found.items()))

    def keys(self, module: str, name: str) -> list[str]:
        """Keys of a registry, sorted, as far as the source tells them."""
        return sorted(self._keys_of(module, name) or ())

    def _reached(
        self, roots: Iterable[str], used: Used, asked: Mapping[str, Collection[str]]
    ) -> tuple[dict[str, ast.Module], dict[str, set[str]]]:
        """Trees of all modules that can be imported, as these users see them, and the names that are imported from each.

        Args:
            asked: names of modules that are known to be imported.
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
            trees[name] = self._as_used(name, used, asked.get(name, ()))
            for module, what in self._imports(name, trees[name], asked.get(name, ())):
                asks.setdefault(module, set()).add(what)
                waiting.append(module)
        return trees, asks

    def _as_used(self, name: str, used: Used, asked: Collection[str]) -> ast.Module:
        entries = frozenset((registry, frozenset(keys)) for (module, registry), keys in used.items() if module == name)
        return self._pruned(name, entries, frozenset(asked)) if entries else self.tree(name)

    def _imports(self, name: str, tree: ast.Module, asked: Collection[str]) -> Iterable[Import]:
        """Of the project's modules; those of a module's `__getattr__` as far as their names are asked for."""
        if tree is self.tree(name) and not any(map(_is_lazy, tree.body)):
            return self._imported(name)
        return self._of_nodes(list(_nodes(tree, asked)), name)

    def _of_nodes(self, nodes: Collection[ast.AST], name: str) -> list[Import]:
        return [found for node in nodes for found in self._of(node, name)] + list(self._through_facade(nodes))

    def _of(self, node: ast.AST, name: str) -> Iterator[Import]:
        """What a node of the module `name` imports."""
        if isinstance(node, ast.Import):
            yield from ((alias.name, EVERYTHING) for alias in node.names if alias.name.split(".")[0] in PACKAGES)
        elif isinstance(node, ast.ImportFrom):
            module = self._absolute(node, name)
            for alias in node.names:
                yield from self._named(module, alias.name)

    def _named(self, module: str, name: str) -> Iterator[Import]:
        """What `from module import name` imports."""
        if module == FACADE:
            home = self._homes().get(name)
            if home is not None:
                yield from self._named(home, name)
        elif module.split(".")[0] in PACKAGES:
            yield module, name
            if self.file(f"{module}.{name}") is not None:
                yield f"{module}.{name}", EVERYTHING

    def _through_facade(self, nodes: Collection[ast.AST]) -> Iterator[Import]:
        """What `beyondcls.NAME` imports where `import beyondcls` stands."""
        imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        called = {alias.asname or alias.name for alias in imported if alias.name == FACADE}
        for node in nodes if called else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in called:
                yield from self._named(FACADE, node.attr)

    def _homes(self) -> dict[str, str]:
        """Modules by the names that the front door gives; none where there is no front door."""
        if self.file(FACADE) is None:
            return {}
        tree = self.tree(FACADE)
        content = next(s.value for s in tree.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == HOMES)
        return ast.literal_eval(content)

    def _absolute(self, node: ast.ImportFrom, name: str) -> str:
        """The module that `from module import …` names, in the module `name`."""
        if not node.level:
            return node.module or ""
        file = self.file(name)
        package = name if file is not None and file.name == "__init__.py" else name.rpartition(".")[0]
        above = package.split(".")[: len(package.split(".")) + 1 - node.level]
        return ".".join([*above, *([node.module] if node.module else [])])

    def _file(self, name: str) -> Path | None:
        path = name.replace(".", "/")
        places = (name,) if name.endswith(".py") else (f"{path}/__init__.py", f"{path}.py")
        return next((self.root / place for place in places if (self.root / place).is_file()), None)

    def _tree(self, name: str) -> ast.Module:
        """A file that is no Python counts by its text: whoever runs it will say so."""
        file = self.file(name)
        assert file is not None, name
        text = file.read_text(encoding="utf-8")
        try:
            return parsed(text)
        except SyntaxError:
            return ast.Module([ast.Return(ast.Constant(text))], [])  # as no module that can be parsed

    def _prune(self, name: str, entries: frozenset[tuple[str, frozenset[str]]], asked: frozenset[str]) -> ast.Module:
        return without_unused(self.tree(name), dict(entries), asked, self._keys_of)

    def _digest_of(self, name: str) -> str:
        return digest(self.tree(name))

    def _imports_of(self, name: str) -> list[Import]:
        return self._of_nodes(list(ast.walk(self.tree(name))), name)

    def _keys_of(self, module: str, name: str) -> set[str] | None:
        return None if self.file(module) is None else keys_in(self.tree(module), name)

    def _shown(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix() if file.is_relative_to(self.root) else file.as_posix()


def _is_lazy(statement: ast.stmt) -> bool:
    """Whether this is a module's `__getattr__`, which imports what somebody asks for."""
    return isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__"


def _nodes(tree: ast.Module, asked: Collection[str]) -> Iterator[ast.AST]:
    """All nodes of a module, but for the imports of its `__getattr__` whose names nobody asks for."""
    for statement in tree.body:
        skips = _is_lazy(statement) and EVERYTHING not in asked
        for node in ast.walk(statement):
            if not (skips and isinstance(node, ast.ImportFrom) and all(alias.name not in asked for alias in node.names)):
                yield node


def _of_bytes(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:DIGITS]
