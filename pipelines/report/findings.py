"""What the numbers say, in sentences, whatever they say."""

import math

from pipelines.report.collect import Inputs, Measure
from pipelines.report.tables import difference, gain, points, title


def findings(inputs: Inputs) -> list[str]:
    """Two or three sentences: AbMILP against [cls], trained against random, and how much the numbers can bear."""
    return [*_gains(inputs), *_above_random(inputs), _caution(inputs)]


def warnings(inputs: Inputs) -> list[str]:
    """What makes rows or cells of the table incomparable; empty if nothing does."""
    found = []
    for encoder in inputs.encoders:
        if len({tuple(sorted(probe.features.items())) for probe in inputs.of(encoder)}) > 1:
            found.append(f"The heads of {encoder} were trained or tested on different feature sets; probe them again.")
        attention, probes = inputs.attention.get(encoder), inputs.of(encoder)
        if attention and probes and attention.key not in {probe.features["test"] for probe in probes}:
            found.append(f"The attention of {encoder} is of another feature set than its probes; compute it again.")
    if len({a.data for a in inputs.attention.values()}) > 1 or len({p.n_test for p in inputs.probes.values()}) > 1:
        found.append("Not all encoders and heads were tested on the same images; rows are not comparable.")
    if len({_protocol(inputs, key) for key in inputs.probes}) > 1:
        found.append("Not all heads were trained with the same recipe and seeds; the last section lists both.")
    return found


def clear(value: Measure) -> bool:
    """Whether a difference is larger than twice its spread over seeds; never with one seed, which has no spread."""
    return len(value.values) > 1 and abs(value.mean) > 2 * value.std


def _protocol(inputs: Inputs, key: tuple[str, str]) -> str:
    probe = inputs.probes[key]
    return repr((sorted(probe.recipe.items()), probe.seeds, probe.n_training))


def _gains(inputs: Inputs) -> list[str]:
    gains = {name: value for name in inputs.encoders if (value := gain(inputs, name)) is not None}
    if not gains:
        return ["AbMILP cannot be compared with [cls]: no encoder has probes of both."]
    told = _list([f"{points(value)} points on {name}" for name, value in gains.items()])
    text = f"Reading the patches with AbMILP instead of reading [cls] changes top-1 accuracy by {told}."
    several = [name for name, value in gains.items() if len(value.values) > 1]
    if not several:
        return [f"{text} There was one seed, so the spread over seeds is unknown."]
    up, down = ([n for n in several if clear(gains[n]) and gains[n].mean * sign > 0] for sign in (1, -1))
    parts = []
    if up:
        parts.append(f"AbMILP is ahead by more than twice the spread over seeds on {_list(up)}")
    if down:
        parts.append(f"[cls] is ahead by more than twice the spread over seeds on {_list(down)}")
    if rest := [name for name in several if name not in up + down]:
        parts.append(f"no difference beyond twice the spread over seeds shows on {_list(rest)}")
    verdict = "; ".join(parts)
    return [f"{text} {verdict[0].upper()}{verdict[1:]}."]


def _above_random(inputs: Inputs) -> list[str]:
    by_twin: dict[str, list[str]] = {}
    for encoder in inputs.encoders:
        if (twin := inputs.twin(encoder)) is None:
            continue
        apart = [
            f"{points(value)} ({title(head)})"
            for head in inputs.heads
            if (value := difference(inputs.probes.get((encoder, head)), inputs.probes.get((twin, head)))) is not None
        ]
        if apart:
            by_twin.setdefault(twin, []).append(f"{encoder} {_list(apart)}")
    if not by_twin:
        return ["There is no untrained twin to hold the trained encoders against (an encoder with “random” in its name)."]
    return [
        f"Against the untrained twin {twin}, in points of top-1 accuracy: {'; '.join(told)}." for twin, told in by_twin.items()
    ]


def _caution(inputs: Inputs) -> str:
    probes = list(inputs.probes.values())
    n_test, n_training = min(p.n_test for p in probes), max(p.n_training for p in probes)
    n_seeds, n_classes = min(len(p.seeds) for p in probes), max(p.n_classes for p in probes)
    share = probes[0].measures["top1"].mean / 100
    for probe in probes:  # nearest to one half: the widest
        share = min(share, probe.measures["top1"].mean / 100, key=lambda p: abs(p - 0.5))
    error = 100 * math.sqrt(max(share * (1 - share), 0) / n_test)
    small = "This is a small experiment: " if n_training < 100_000 else "The basis: "
    return (
        f"{small}{n_training:,} training and {n_test:,} test images of {n_classes:,} classes, "
        f"{n_seeds} seed{'s' if n_seeds > 1 else ''} per head. The spread after ± is over seeds only; "
        f"the choice of test images alone moves a single accuracy by about {error:.1f} points (one standard error). "
        "Whether such differences hold for larger encoders and data is not shown here."
    )


def _list(parts: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
