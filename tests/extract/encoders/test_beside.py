"""What training scripts leave beside the weights: read as plain data, without the packages that wrote it."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from extract.encoders.weights import read_checkpoint
from store import BeyondClsError

WEIGHTS = {"norm.weight": torch.ones(3)}


class OfAnyKind:
    """Pickled as a number of numpy whose type is `object`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.float64(1).__reduce__()[0], (np.dtype("O"), b"8 bytes.")


def test_numbers_of_an_older_numpy(tmp_path):
    """Schedules are arrays, so learning rates are numbers of numpy, which older files name by another module."""
    written = {"teacher": WEIGHTS, "optimizer": {"lr": np.float64(1e-4), "weight_decay": np.float32(0.4)}}
    torch.save(written, tmp_path / "new.pth", _use_new_zipfile_serialization=False)
    content = (tmp_path / "new.pth").read_bytes()
    assert b"cnumpy._core.multiarray\nscalar" in content
    (tmp_path / "old.pth").write_bytes(content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    for age in ("new", "old"):
        content = read_checkpoint(tmp_path / f"{age}.pth")
        assert content["optimizer"] == written["optimizer"]
        assert torch.equal(content["teacher"]["norm.weight"], torch.ones(3))


def test_numbers_of_numpy_are_no_objects(tmp_path):
    """A number of numpy may be any object, whose unpickling would run its code."""
    torch.save({"teacher": WEIGHTS, "lr": OfAnyKind()}, tmp_path / "w.pth")
    with pytest.raises(BeyondClsError, match=r"holds more than tensors, a numpy.dtype 'O8', and is not loaded"):
        read_checkpoint(tmp_path / "w.pth")


def test_settings_of_yacs(tmp_path, monkeypatch):
    """SimMIM's training script saves its settings as they are; they are read without yacs and without running code."""

    class CfgNode(dict[str, Any]):
        def __init__(self, **values):
            super().__init__(values)
            self.__dict__["__immutable__"] = True

    yacs = ModuleType("yacs.config")
    CfgNode.__module__, CfgNode.__qualname__, yacs.CfgNode = "yacs.config", "CfgNode", CfgNode
    monkeypatch.setitem(sys.modules, "yacs", ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", yacs)
    settings = CfgNode(MODEL=CfgNode(TYPE="vit", DROP=0.1, SIZES=[1, 2]), BASE=("",))
    torch.save({"model": WEIGHTS, "config": settings, "epoch": 799}, tmp_path / "w.pth")
    monkeypatch.delitem(sys.modules, "yacs.config")
    content = read_checkpoint(tmp_path / "w.pth")
    assert content["config"] == {"MODEL": {"TYPE": "vit", "DROP": 0.1, "SIZES": [1, 2]}, "BASE": ("",)}
    assert torch.equal(content["model"]["norm.weight"], torch.ones(3))
