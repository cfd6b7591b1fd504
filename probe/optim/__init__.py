"""Optimisers of many members at once, by name. To add one: a class in its own file here, and its line in OPTIMISERS."""

from probe.optim.adamw import AdamW
from probe.optim.lars import LARS
from probe.optim.optimiser import Optimiser
from probe.optim.schedule import learning_rate
from probe.optim.sgd import SGD

OPTIMISERS: dict[str, type[Optimiser]] = {"lars": LARS, "sgd": SGD, "adamw": AdamW}

__all__ = ["LARS", "OPTIMISERS", "SGD", "AdamW", "Optimiser", "learning_rate"]
