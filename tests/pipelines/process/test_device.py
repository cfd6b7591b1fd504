"""Where a stage computes."""

import pytest
import torch

from pipelines.process.device import choose_device
from store import BeyondClsError


@pytest.mark.parametrize(
    ("n_gpus", "name", "expected"),
    [
        *((4, "auto", "cuda"), (0, "auto", "cpu"), (9, "cuda:8", "cuda:8")),
        (0, "gpu", "unknown device 'gpu'; expected auto, cpu"),
        (0, "cuda", "'cuda', but torch sees no GPU here; use --device cpu"),
        (9, "cuda:9", "'cuda:9', but torch sees 9 GPUs here; use cuda:0 to cuda:8"),
        # what was never tried on a device is not promised for it, also where torch has it
        *((9, name, f"'{name}', but .* on cpu and cuda alone") for name in ("mps:0", "xpu", "meta")),
    ],
)
def test_choice(n_gpus: int, name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: n_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    if " " in expected:
        with pytest.raises(BeyondClsError, match=expected):
            choose_device(name)
    else:
        assert choose_device(name) == torch.device(expected)
