"""Whether two rehearsals, or what two of them led to, are the same up to rounding."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOSS = 1e-4  # of a loss. Another order of float32's additions moves it by less than 1e-6 within these few steps
STATE = 1e-4  # of the norm of parameters and statistics behind them, which move by less than 1e-6 likewise
RIGHT = 0.2  # percentage points of the images of these steps: of two classes that are nearly equal either may be the higher
START = 1e-5  # of the norm: normal numbers are drawn in float32, by instructions that CPUs differ in
UPDATE = 1e-9  # of the norm, in float64; of learning rates, too
PERCENT = 0.01  # percentage points of a measure of the test images: one image in 10,000
ENTROPY = 1e-3  # nats

EXACT = {
    "pieces": "how an epoch is cut into steps",
    "images": "which images epochs show, in which order and view",
    "rows": "the images of the steps that were taken",
    "judged_by": "the images that settings are compared on",
}
SUMMARIES = {
    "learning_rates": ("the learning rates of all steps", UPDATE),
    "start": ("where the head starts", START),
    "updates": ("how the optimiser updates parameters", UPDATE),
    "state": ("the parameters and running statistics behind the steps", STATE),
}


@dataclass
class Agreement:
    """What was compared.

    Attributes:
        worst: of each part that has a tolerance, the largest difference, in units of its tolerance.
        steps: of each pass, how many were compared.
        loss: the largest difference of a loss, relative.
        differs: the first thing that differs, in words; None where all agree.
    """

    worst: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    loss: float = 0.0
    differs: str | None = None

    def compare_passes(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Compare all rehearsals of a head."""
        if before.keys() != now.keys():
            self._note(f"its passes: {_named(before)} were recorded, {_named(now)} are taken now")
            return
        for name in before:
            self._compare_pass(name, before[name], now[name])

    def compare_measures(self, seed: int, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        """Compare what the stored head of a seed reaches on the test images."""
        if before.keys() != now.keys():
            self._note(f"what is measured: {_named(before)} before, {_named(now)} now")
            return
        for name, value in before.items():
            allowed = ENTROPY if name == "entropy" else PERCENT
            self._measure("measures", value, now[name], allowed, f"{name} of the stored head of seed {seed}")

    def _compare_pass(self, of_pass: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name, words in EXACT.items():
            if before.get(name) != now.get(name):
                self._note(f"{words} ({of_pass})")
        if self.differs is not None:
            return
        self._compare_summary("learning_rates", before["learning_rates"], now["learning_rates"], of_pass)
        for rates, again in zip(before["rates"], now["rates"], strict=True):
            for rate, other in zip(rates, again, strict=True):
                words = f"the learning rate of a step that was taken ({of_pass})"
                self._measure("rates", rate, other, UPDATE * abs(rate), words)
        self.steps[of_pass] = sum(map(len, now["rates"]))
        ours, theirs = before["members"], now["members"]
        if [member[:3] for member in ours] != [member[:3] for member in theirs]:
            self._note(f"the members that train ({of_pass})")
            return
        for (base_lr, weight_decay, seed, then), (*_, again) in zip(ours, theirs, strict=True):
            self._compare_member(then, again, f"base_lr {base_lr:g}, weight_decay {weight_decay:g}, seed {seed}; {of_pass}")

    def _compare_member(self, before: Mapping[str, Any], now: Mapping[str, Any], member: str) -> None:
        for part in ("start", "updates"):
            self._compare_summary(part, before[part], now[part], member)
        for place, (losses, again) in enumerate(zip(before["losses"], now["losses"], strict=True)):
            for step, (value, other) in enumerate(zip(losses, again, strict=True)):
                allowed = LOSS * abs(value)
                self._measure("losses", value, other, allowed, f"the loss of step {step + 1} of part {place + 1} ({member})")
                self.loss = max(self.loss, _apart(value, other) / abs(value) if value else 0.0)
            right = before["right"][place], now["right"][place]
            self._measure("right", *right, RIGHT, f"the share of right answers in part {place + 1} ({member})")
            self._compare_summary("state", before["state"][place], now["state"][place], member)

    def _compare_summary(self, part: str, before: Mapping[str, Any], now: Mapping[str, Any], member: str) -> None:
        words, tolerance = SUMMARIES[part]
        if before.keys() != now.keys():
            self._note(f"{words}: {_named(before)} before, {_named(now)} now ({member})")
            return
        for name, (norm, product) in before.items():
            for value, other in ((norm, now[name][0]), (product, now[name][1])):
                self._measure(part, value, other, tolerance * norm, f"{words}, {name} ({member})")

    def _measure(self, part: str, before: float, now: float, allowed: float, words: str) -> None:
        apart = _apart(before, now)
        units = 0.0 if apart == 0 else apart / allowed if allowed > 0 else math.inf
        self.worst[part] = max(self.worst.get(part, 0.0), units)
        if units > 1:
            self._note(f"{words}: {before:.7g} before, {now:.7g} now")

    def _note(self, words: str) -> None:
        self.differs = self.differs or words


def _apart(one: float, other: float) -> float:
    """Distance; of what is no number both times 0."""
    if math.isnan(one) or math.isnan(other) or math.isinf(one) or math.isinf(other):
        return 0.0 if repr(one) == repr(other) else math.inf
    return abs(one - other)


def _named(what: Mapping[str, Any]) -> str:
    return ", ".join(what) or "none"
