"""The program as it would be with one line edited."""

import importlib
import inspect
from types import FunctionType


def edit(monkeypatch, module, old, new):
    """Give functions and methods of `module` that contain the text `old` the code that they have with `new` in its place."""
    original = importlib.import_module(module)
    source = inspect.getsource(original)
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {module}"
    namespace = {"__name__": module, "__file__": original.__file__}
    exec(compile(source.replace(old, new), original.__file__, "exec"), namespace)
    after = dict(functions(namespace, original))
    changed = {name: code for name, code in functions(vars(original), original) if old in inspect.getsource(code)}
    assert changed, f"{old!r} is in no function of {module}"
    for name, function in changed.items():
        monkeypatch.setattr(function, "__code__", after[name].__code__)


def functions(namespace, module):
    """Functions and methods of a module, by name, without decorators."""
    for name, value in list(namespace.items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from ((f"{name}.{method}", function) for method, function in functions(vars(value), module))
        else:
            function = inspect.unwrap(getattr(value, "__func__", value) if not isinstance(value, property) else value.fget)
            if isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__:
                yield name, function
