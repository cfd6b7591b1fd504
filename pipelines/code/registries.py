"""A registry's module as those see it who use only some of its entries.

A registry is a dictionary that a module writes out (`ENCODERS = {…}`); its values come from leaves, modules of their own. What
is not used of it is taken out of the tree: the entries, the imports that serve them alone, and the names of these in `__all__`.
"""

import ast
from collections.abc import Callable, Collection, Mapping
from copy import copy

EVERYTHING = "*"

# Module and name of a registry -> keys of the entries that are used; all of a registry that is not mentioned.
Used = Mapping[tuple[str, str], Collection[str]]
# Module and name of a dictionary -> its keys; None where the source does not tell.
KeysOf = Callable[[str, str], "set[str] | None"]


def without_unused(
    tree: ast.Module, used: Mapping[str, Collection[str]], asked: Collection[str], keys_of: KeysOf
) -> ast.Module:
    """A copy of a module without the entries that are not used, and what there is for them alone.

    Args:
        used: keys that are, by name of the registry.
        asked: names that other modules import from this one, which stay; EVERYTHING if one of them imports the module itself.
        keys_of: for entries such as `**leaf.ENCODERS`; where they cannot be told, the leaf counts as used.

    Raises:
        LookupError: there is no such dictionary in the module, or it is not written out.
    """
    homes = homes_of(tree)
    body, unused = list(tree.body), []
    for name, keys in used.items():
        where = next((i for i, statement in enumerate(body) if _assigned(statement) == name), None)
        if where is None or not isinstance(content := body[where].value, ast.Dict):  # type: ignore[attr-defined]
            raise LookupError(f"no dictionary {name} is written out in the module; units.py names a registry that is gone")
        pairs = list(zip(content.keys, content.values, strict=True))
        kept = [pair for pair in pairs if _is_used(pair, keys, homes, keys_of)]
        unused += [value for pair in pairs if pair not in kept for value in pair if value is not None]
        body[where] = copy(body[where])
        body[where].value = ast.Dict([key for key, _ in kept], [value for _, value in kept])  # type: ignore[attr-defined]
    gone = _names(unused) - _names(body)
    gone = set() if EVERYTHING in asked else {name for name in gone if name in homes} - set(asked)
    return ast.Module([s for statement in body if (s := _without(statement, gone)) is not None], [])


def keys_in(tree: ast.Module, name: str) -> set[str] | None:
    """Keys of a dictionary of a module; None where the source does not tell all of them."""
    content = next((s.value for s in tree.body if _assigned(s) == name), None)  # type: ignore[attr-defined]
    if not isinstance(content, ast.Dict):
        return None
    keys = [key.value if isinstance(key, ast.Constant) else None for key in content.keys]
    return {str(key) for key in keys} if None not in keys else None


def homes_of(tree: ast.Module) -> dict[str, str]:
    """Modules, or names in modules, by the names that the imports of a module bind."""
    homes: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            homes |= {alias.asname or alias.name: f"{statement.module}.{alias.name}" for alias in statement.names}
        elif isinstance(statement, ast.Import):
            homes |= {alias.asname: alias.name for alias in statement.names if alias.asname}
    return homes


def _assigned(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns to."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        targets = statement.targets if isinstance(statement, ast.Assign) else []  # type: ignore[assignment]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _is_used(pair: tuple[ast.expr | None, ast.expr], keys: Collection[str], homes: Mapping[str, str], keys_of: KeysOf) -> bool:
    key, value = pair
    if key is not None:
        return not isinstance(key, ast.Constant) or key.value in keys
    if not (isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id in homes):
        return True
    included = keys_of(homes[value.value.id], value.attr)
    return included is None or not included.isdisjoint(keys)


def _names(nodes: Collection[ast.AST]) -> set[str]:
    return {node.id for tree in nodes for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _without(statement: ast.stmt, gone: Collection[str]) -> ast.stmt | None:
    """A statement of a module without names: its imports, or the texts in `__all__`; None if nothing is left of it."""
    left = copy(statement)
    if isinstance(left, ast.Import | ast.ImportFrom):
        left.names = [alias for alias in left.names if (alias.asname or alias.name) not in gone]
        return left if left.names else None
    if _assigned(left) == "__all__" and isinstance(left.value, ast.List | ast.Tuple):  # type: ignore[attr-defined]
        content = copy(left.value)  # type: ignore[attr-defined]
        content.elts = [item for item in content.elts if not (isinstance(item, ast.Constant) and item.value in gone)]
        left.value = content  # type: ignore[attr-defined]
    return left
