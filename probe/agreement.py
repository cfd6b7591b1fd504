"""Whether two rehearsals, or the heads they led to, are the same up to rounding."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.result_files import NLL, REACHED, SHORT

LOSS = 1e-4  # relative to the loss. Adding float32 in another order moves it by less than 1e-6 within these few steps
STATE = 1e-4  # relative to the norm of parameters and statistics after the steps, which move by less than 1e-6 likewise
RIGHT = 0.2  # percentage points of the images of these steps: where two classes nearly tie, either may win
START = 1e-5  # relative to the norm: normal numbers are drawn in float32, with instructions that differ between CPUs
UPDATE = 1e-9  # relative to the norm, in float64; of learning rates, too
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
    "state": ("the parameters and running statistics after the steps", STATE),
}


@dataclass
class Agreement:
    """The outcome of comparing what was recorded with what is now.

    Attributes:
        worst: the largest difference of each part that has a tolerance, in units of that tolerance.
        steps: how many steps of each pass were compared.
        loss: the largest relative difference of a loss.
        differs: the first difference, in words; None where everything agrees.
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
        """Compare the measures of the stored head of a seed on the test images; nothing is fitted beside it again."""
        before = {name: value for name, value in before.items() if name not in (REACHED, SHORT)}
        if not before.keys() <= now.keys():
            self._note(f"what is measured: {_named(before)} before, {_named(now)} now")
            return
        for name, value in before.items():
            allowed = ENTROPY if name in ("entropy", NLL) else PERCENT
            self._measure("measures", value, now[name], allowed, f"{name} of the stored head of seed {seed}")

    def _compare_pass(self, pass_name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name, words in EXACT.items():
            if before.get(name) != now.get(name):
                self._note(f"{words} ({pass_name})")
        if self.differs is not None:
            return
        self._compare_summary("learning_rates", before["learning_rates"], now["learning_rates"], pass_name)
        for rates_before, rates_now in zip(before["rates"], now["rates"], strict=True):
            for rate, rate_now in zip(rates_before, rates_now, strict=True):
                words = f"the learning rate of a step that was taken ({pass_name})"
                self._measure("rates", rate, rate_now, UPDATE * abs(rate), words)
        self.steps[pass_name] = sum(map(len, now["rates"]))
        members_before, members_now = before["members"], now["members"]
        if [member[:3] for member in members_before] != [member[:3] for member in members_now]:
            self._note(f"the members that train ({pass_name})")
            return
        for (base_lr, weight_decay, seed, recorded), (*_, current) in zip(members_before, members_now, strict=True):
            words = f"base_lr {base_lr:g}, weight_decay {weight_decay:g}, seed {seed}; {pass_name}"
            self._compare_member(recorded, current, words)

    def _compare_member(self, before: Mapping[str, Any], now: Mapping[str, Any], member: str) -> None:
        for part in ("start", "updates"):
            self._compare_summary(part, before[part], now[part], member)
        for place, (losses_before, losses_now) in enumerate(zip(before["losses"], now["losses"], strict=True)):
            for step, (value, value_now) in enumerate(zip(losses_before, losses_now, strict=True)):
                allowed = LOSS * abs(value)
                words = f"the loss of step {step + 1} of part {place + 1} ({member})"
                self._measure("losses", value, value_now, allowed, words)
                self.loss = max(self.loss, _distance(value, value_now) / abs(value) if value else 0.0)
            right = before["right"][place], now["right"][place]
            self._measure("right", *right, RIGHT, f"the share of right answers in part {place + 1} ({member})")
            self._compare_summary("state", before["state"][place], now["state"][place], member)

    def _compare_summary(self, part: str, before: Mapping[str, Any], now: Mapping[str, Any], member: str) -> None:
        words, tolerance = SUMMARIES[part]
        if before.keys() != now.keys():
            self._note(f"{words}: {_named(before)} before, {_named(now)} now ({member})")
            return
        for name, (norm, product) in before.items():
            for value, value_now in ((norm, now[name][0]), (product, now[name][1])):
                self._measure(part, value, value_now, tolerance * norm, f"{words}, {name} ({member})")

    def _measure(self, part: str, before: float, now: float, allowed: float, words: str) -> None:
        distance = _distance(before, now)
        units = 0.0 if distance == 0 else distance / allowed if allowed > 0 else math.inf
        self.worst[part] = max(self.worst.get(part, 0.0), units)
        if units > 1:
            self._note(f"{words}: {before:.7g} before, {now:.7g} now")

    def _note(self, words: str) -> None:
        self.differs = self.differs or words


def _distance(a: float, b: float) -> float:
    """|a - b|; 0 where both are NaN or the same infinity."""
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return 0.0 if repr(a) == repr(b) else math.inf
    return abs(a - b)


def _named(parts: Mapping[str, Any]) -> str:
    return ", ".join(parts) or "none"
