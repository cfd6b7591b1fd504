"""What `tests.shapes` checks, shown on a module that is put into a package."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation as Violation

import store
from tests.shapes import OFTEN, PACKAGES, checked

SOURCE = """
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

def scaled(x: Float[Tensor, "B D"], scale: Float[Tensor, "D"] | None = None) -> Float[Tensor, "B D"]:
    return x if scale is None else x * scale

def flat(x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    return x.flatten()

def named(name: str, scales: "list[Unknown]") -> int:
    return name

@dataclass
class Record:
    x: Float[Tensor, "B D"]
    weights: dict[str, Float[Tensor, "B T"]]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "shaped.py").write_text(SOURCE)
    monkeypatch.setattr(store, "__path__", [*store.__path__, str(tmp_path)])
    yield importlib.import_module("store.shaped")
    del sys.modules["store.shaped"], store.shaped


def test_packages_were_imported_with_checks():
    loaders = {type(importlib.import_module(package).__loader__).__module__ for package in PACKAGES}
    assert loaders == {"jaxtyping._import_hook"}


def test_what_fits_passes(module):
    x = torch.ones(2, 3)
    assert module.scaled(x) is x
    assert module.scaled(x, torch.ones(3)).shape == (2, 3)
    module.Record(x, {"abmilp": torch.ones(2, 4)})


@pytest.mark.parametrize("x", [torch.ones(3), torch.ones(2, 3, dtype=torch.int64), [[1.0]]])
def test_another_rank_or_dtype_is_refused(module, x):
    with pytest.raises(Violation, match=r"shaped\.scaled\(\) parameter x="):
        module.scaled(x)


def test_sizes_that_contradict_each_other_are_refused(module):
    x = torch.ones(2, 3)
    with pytest.raises(Violation, match=r"parameter scale=.*Float\[Tensor, 'D'\]"):
        module.scaled(x, torch.ones(1))
    with pytest.raises(Violation, match="parameter weights="):
        module.Record(x, {"abmilp": torch.ones(3, 4)})


def test_what_is_returned_is_checked(module):
    with pytest.raises(Violation, match=r"shaped\.flat\(\) return "):
        module.flat(torch.ones(2, 3))


def test_other_annotations_are_not(module):
    assert module.named(3, None) == 3


def test_the_first_calls_of_each_test_are_checked(module):
    for _ in range(OFTEN):
        module.scaled(torch.ones(2, 3))
    assert module.scaled(torch.ones(3)).shape == (3,)


def test_shapes_in_quotes_are_refused():
    def quoted(x: "Float[Tensor, 'B D']") -> None:  # noqa: F821
        pass

    with pytest.raises(AssertionError, match="not checked in quotes: Float"):
        checked(quoted)


def test_compiled_functions_are_traced_without_checks(module):
    torch._dynamo.reset()  # after some kinds of calls it gives up on the wrapper, which all functions share
    assert torch.compile(module.scaled, backend="eager")(torch.ones(2, 3), torch.ones(1)).shape == (2, 3)
