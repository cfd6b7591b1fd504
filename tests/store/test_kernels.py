"""Where kernels run: not on a CPU, not with a Triton that cannot compile them, and that is said."""

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from store import kernels
from store.errors import BeyondClsWarning

triton = pytest.importorskip("triton")


@pytest.fixture
def on_gpu(monkeypatch):
    """A tensor on a GPU that may not be there; a warning is an error."""
    monkeypatch.setattr(kernels, "_is_capable", lambda device: True)
    kernels._can_be_compiled.cache_clear()
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield torch.empty(2, device="cuda")
    kernels._can_be_compiled.cache_clear()


@pytest.mark.parametrize("version", ["3.6.0", "3.10.1", "4.0.0+git1"])
def test_a_triton_that_compiles_them(version, on_gpu, monkeypatch):
    monkeypatch.setattr(triton, "__version__", version)
    assert kernels.apply_to(on_gpu)
    assert not kernels.apply_to(torch.empty(2, device="cpu"))


def test_an_older_triton_is_named_once(on_gpu, monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    with pytest.warns(BeyondClsWarning, match=r"Triton 3\.5\.1 .* expected 3\.6 .* install PyTorch 2\.10") as warned:
        assert not any([kernels.apply_to(on_gpu), kernels.apply_to(on_gpu)])
    assert len(warned) == 1


def test_where_nobody_wants_or_has_them_nothing_is_to_be_said(on_gpu, monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    with monkeypatch.context() as patch:
        patch.setenv("BEYONDCLS_KERNELS", "0")
        assert not kernels.apply_to(on_gpu)
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels.apply_to(on_gpu)
