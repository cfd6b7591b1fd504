"""A registry's module as it is for users of only some of its entries.

A registry is a literal dictionary in a module (`CODECS = {…}`, or `ENCODERS = Registry(…) | {…}`, which takes entries of other
packages); its values come from leaves, separate modules. Unused parts are removed from the tree: the entries, the imports that
only they need, and the names of these in `__all__`.
"""

import ast
from collections.abc import Callable, Collection, Mapping
from copy import copy

EVERYTHING = "*"

# Module and name of a registry -> keys of the entries that are used; all of a registry that is not mentioned.
Used = Mapping[tuple[str, str], Collection[str]]
# Module and name of a dictionary -> its keys; None if they are not literal in the source.
KeysOf = Callable[[str, str], "set[str] | None"]


def without_unused(
    tree: ast.Module, used: Mapping[str, Collection[str]], requested: Collection[str], keys_of: KeysOf
) -> ast.Module:
    """A copy of a module without unused entries and everything that only they need.

    Args:
        used: used keys, by name of the registry.
        requested: names that other modules import from this one, which stay; EVERYTHING if one imports the module itself.
        keys_of: for entries such as `**leaf.ENCODERS`; if the keys are unknown, the leaf counts as used.

    Raises:
        LookupError: there is no such dictionary in the module, or it is not literal.
    """
    homes = homes_of(tree)
    body, unused = list(tree.body), []
    for name, keys in used.items():
        position = next((i for i, statement in enumerate(body) if _assigned_name(statement) == name), None)
        if position is None or (content := _assigned_dictionary(body[position])) is None:
            raise LookupError(f"no dictionary {name} is written out in the module; units.py names a registry that is gone")
        pairs = list(zip(content.keys, content.values, strict=True))
        used_pairs = [pair for pair in pairs if _is_used(pair, keys, homes, keys_of)]
        unused += [value for pair in pairs if pair not in used_pairs for value in pair if value is not None]
        remaining: ast.expr = ast.Dict([key for key, _ in used_pairs], [value for _, value in used_pairs])
        if isinstance(joined := body[position].value, ast.BinOp):  # type: ignore[attr-defined]
            remaining = ast.BinOp(joined.left, joined.op, remaining)
        body[position] = copy(body[position])
        body[position].value = remaining  # type: ignore[attr-defined]
    removed = _used_names(unused) - _used_names(body)
    removed = set() if EVERYTHING in requested else {name for name in removed if name in homes} - set(requested)
    return ast.Module([s for statement in body if (s := _without_names(statement, removed)) is not None], [])


def keys_in(tree: ast.Module, name: str) -> set[str] | None:
    """Keys of a dictionary of a module; None if not all of them are literal."""
    content = next((_assigned_dictionary(s) for s in tree.body if _assigned_name(s) == name), None)
    if content is None:
        return None
    keys = [key.value if isinstance(key, ast.Constant) else None for key in content.keys]
    return {str(key) for key in keys} if None not in keys else None


def groups_in(tree: ast.Module) -> dict[str, str]:
    """Groups of entry points by the name of the registry, of those in a module that take entries of other packages."""
    groups = {}
    for statement in tree.body:
        if (name := _assigned_name(statement)) and isinstance(joined := statement.value, ast.BinOp):  # type: ignore[attr-defined]
            made = joined.left
            if isinstance(made, ast.Call) and made.args and isinstance(made.args[0], ast.Constant):
                groups[name] = str(made.args[0].value)
    return groups


def homes_of(tree: ast.Module) -> dict[str, str]:
    """Modules, or names in modules, by the names that the imports of a module bind."""
    homes: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            homes |= {alias.asname or alias.name: f"{statement.module}.{alias.name}" for alias in statement.names}
        elif isinstance(statement, ast.Import):
            homes |= {alias.asname: alias.name for alias in statement.names if alias.asname}
    return homes


def _assigned_name(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns to."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        targets = statement.targets if isinstance(statement, ast.Assign) else []  # type: ignore[assignment]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _assigned_dictionary(statement: ast.stmt) -> ast.Dict | None:
    """The dictionary that a statement assigns, alone or as `Registry(…) | {…}`."""
    value = getattr(statement, "value", None)
    value = value.right if isinstance(value, ast.BinOp) else value
    return value if isinstance(value, ast.Dict) else None


def _is_used(pair: tuple[ast.expr | None, ast.expr], keys: Collection[str], homes: Mapping[str, str], keys_of: KeysOf) -> bool:
    key, value = pair
    if key is not None:
        return not isinstance(key, ast.Constant) or key.value in keys
    if not (isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id in homes):
        return True
    included = keys_of(homes[value.value.id], value.attr)
    return included is None or not included.isdisjoint(keys)


def _used_names(nodes: Collection[ast.AST]) -> set[str]:
    return {node.id for tree in nodes for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _without_names(statement: ast.stmt, removed: Collection[str]) -> ast.stmt | None:
    """A statement of a module without removed names, in imports or in `__all__`; None if nothing is left of it."""
    remaining = copy(statement)
    if isinstance(remaining, ast.Import | ast.ImportFrom):
        remaining.names = [alias for alias in remaining.names if (alias.asname or alias.name) not in removed]
        return remaining if remaining.names else None
    if _assigned_name(remaining) == "__all__" and isinstance(remaining.value, ast.List | ast.Tuple):  # type: ignore[attr-defined]
        content = copy(remaining.value)  # type: ignore[attr-defined]
        content.elts = [item for item in content.elts if not (isinstance(item, ast.Constant) and item.value in removed)]
        remaining.value = content  # type: ignore[attr-defined]
    return remaining
