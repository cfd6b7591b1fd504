"""A GPU that is not there: its tensors have shapes, dtypes and places alone, and one in the wrong place is found anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from extract.encoders import Encoder

CUDA = torch.device("cuda", 0)


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """A context in which tensors that are made on "cuda" are fake, as if such a device were there; bf16 included.

    Real tensors may not be mixed with them: whatever was left on the CPU is an error.
    """
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    with FakeTensorMode() as mode:
        yield mode


def placed(encoder: Encoder, mode: FakeTensorMode) -> None:
    """Put what `Module.to` moves, parameters and buffers, on the fake device; what it leaves behind stays, and is found."""
    constants = encoder._normalisation  # which are moved to where images are
    constants._constants = mode.from_tensor(constants._constants)
    for part in encoder.model.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(mode.from_tensor(parameter).to(CUDA), requires_grad=False)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = mode.from_tensor(buffer).to(CUDA)


class Launches:
    """In the place of kernels, which do not run: for each launch the tensor whose device was made the current one, or None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.guarded_by: list[torch.Tensor | None] = []
        self._current: torch.Tensor | None = None
        monkeypatch.setattr(torch.cuda, "device_of", self._device_of)

    @contextmanager
    def _device_of(self, tensor: torch.Tensor) -> Iterator[None]:
        self._current = tensor
        yield
        self._current = None

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **__: self.guarded_by.append(self._current)


class Started(TorchDispatchMode):
    """Counts operations that make new tensors: not views, nor questions such as for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(isinstance(out.type, torch.TensorType) and out.alias_info is None for out in func._schema.returns)
        return func(*args, **(kwargs or {}))
