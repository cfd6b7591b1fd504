"""The record beside a receipt: the program that made a feature set, or that last confirmed it by a sample."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from extract.sample import SampleCheck
from store import FeatureStore
from store.environment import versions_of
from store.moving.receipt import CHECK
from store.places.disk import write_file

Checks = list[tuple[FeatureStore, SampleCheck]]
PACKAGES = ("torch", "timm", "torchvision", "pillow", "numpy", "beyondcls")  # whose versions may change what is computed


def check_of(receipt: Path) -> Path:
    """receipts/NAME.check.json. The receipt itself describes the set, and stays as it is."""
    return receipt.with_name(f"{receipt.stem}{CHECK}")


def write_check(
    receipt: Path,
    store: FeatureStore,
    checks: Checks,
    device: torch.device,
    devices: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Write which versions extracted a set, or compared a sample of it, on which device, and with which result.

    Args:
        receipt: of the set.
        checks: of the set itself, or of sets whose arrays it took over; empty if everything was extracted now.
        device: of this process.
        devices: what computed each unit, as far as this process knows.
    """
    content: dict[str, Any] = {
        "key": store.spec.key,
        "versions": versions_of(PACKAGES),
        "device": device.type,
        **({"units": _by_model(devices)} if devices else {}),
        "compared": [{"key": compared.spec.key, **check.to_dict()} for compared, check in checks],
    }
    write_file(check_of(receipt), [(json.dumps(content, indent=1) + "\n").encode()])


def _by_model(devices: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """Units of each model of device, as ranges: 0-6,9."""
    by_model: dict[str, list[list[int]]] = {}
    for unit in sorted(devices):
        ranges = by_model.setdefault(str(devices[unit].get("device")), [])
        if ranges and ranges[-1][-1] == unit - 1:
            ranges[-1][1:] = [unit]
        else:
            ranges.append([unit])
    return {model: ",".join("-".join(map(str, ends)) for ends in by_model[model]) for model in sorted(by_model)}
