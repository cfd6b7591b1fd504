"""The paper's statements besides AbMILP's gains, with what the full-size check measured of each and whether that agrees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.report.collect import Inputs
from pipelines.report.tables import signed

MAE, FINE_TUNED, MOCO = "quickstart-mae", "quickstart-mae-ft", "quickstart-mocov3"
NOT_LEARNED = ("central-attention", "cls-attention", "joined-attention", "lowest-entropy-head", "k-means", "norm", "pca")
Measured = tuple[str, bool]  # as shown, and whether it agrees with the paper


@dataclass(frozen=True)
class Statement:
    """What the paper says, and where."""

    text: str
    source: str
    measure: Callable[[Inputs], Measured]


def ordered(statistic: str, more: str, less: str, digits: int, over_blocks: bool = False) -> Callable[[Inputs], Measured]:
    """Whether one encoder has more of a statistic than another: mean over images and heads, in the last block or all."""

    def mean(inputs: Inputs, encoder: str) -> float:
        means = [value for value, _ in inputs.attention[encoder].statistics[statistic]]
        return sum(means) / len(means) if over_blocks else means[-1]

    def measure(inputs: Inputs) -> Measured:
        one, other = mean(inputs, more), mean(inputs, less)
        return f"{one:.{digits}f} {'>' if one > other else '≤'} {other:.{digits}f}", one > other

    return measure


def kept_by_cls(inputs: Inputs) -> Measured:
    shares = [mean for mean, _ in inputs.attention[MAE].statistics["cls_self"]]
    return f"{min(shares):.2f} to {max(shares):.2f} by block", all(0.3 < share < 0.7 for share in shares)


def nearest_fixed_choice(inputs: Inputs) -> Measured:
    """Of selections that are not learned, the one that comes nearest to AbMILP, or is the furthest ahead."""
    behind = {(head, e): _points(inputs, e, head, "abmilp") for e in (MAE, MOCO) for head in NOT_LEARNED}
    head, encoder = max(behind, key=behind.__getitem__)
    return f"{head} on {encoder}: {signed(behind[head, encoder])} points", behind[head, encoder] < 0


def attentive_probing(inputs: Inputs) -> Measured:
    one, twelve = ([_points(inputs, encoder, head, "abmilp") for encoder in (MAE, MOCO)] for head in ("ap-1", "ap-12"))
    shown = "; ".join(f"{signed(few)} and {signed(many)} points" for few, many in zip(one, twelve, strict=True))
    return shown, all(many > abs(few) for few, many in zip(one, twelve, strict=True))


def average_on_joint(inputs: Inputs) -> Measured:
    ahead = _points(inputs, MOCO, "average", "cls")
    return f"{signed(ahead)} points", ahead < 0


def _points(inputs: Inputs, encoder: str, head: str, other: str) -> float:
    return inputs.probes[encoder, head].measures["top1"].mean - inputs.probes[encoder, other].measures["top1"].mean


STATEMENTS: Sequence[Statement] = (
    Statement(
        "Patches of the MAE attend to themselves more than MoCo's, last block", "Fig. 5", ordered("patch_self", MAE, MOCO, 2)
    ),
    Statement(
        "Patches of MoCo attend to others more evenly than the MAE's, last block, nats",
        "Fig. 6",
        ordered("patch_patch_entropy", MOCO, MAE, 1),
    ),
    Statement("[cls] of the MAE keeps about half of its attention for itself", "Fig. 3", kept_by_cls),
    Statement("No choice of patches that is not learned reaches AbMILP; the nearest", "Tables 4, 6", nearest_fixed_choice),
    Statement(
        "Attentive probing − AbMILP is near 0 with one head and clearly positive with twelve", "Table 7", attentive_probing
    ),
    Statement("The average patch of a joint-embedding encoder is behind its [cls]", "Table 1", average_on_joint),
    Statement(
        "[cls] of the MAE attends to patches more evenly than after fine-tuning, last block, nats",
        "Fig. 4",
        ordered("cls_patch_entropy", MAE, FINE_TUNED, 1),
    ),
    Statement(
        "[cls] of the fine-tuned MAE keeps more of its attention than before, all blocks",
        "Fig. 3",
        ordered("cls_self", FINE_TUNED, MAE, 2, over_blocks=True),
    ),
    Statement(
        "Patches of the MAE attend to themselves more than after fine-tuning, last block",
        "Fig. 5",
        ordered("patch_self", MAE, FINE_TUNED, 2),
    ),
)


def table(inputs: Inputs) -> str:
    """In Markdown, a row for each statement."""
    lines = ["| The paper | Where | Measured | Agrees |", "|---|---|---|---|"]
    for statement in STATEMENTS:
        shown, agrees = statement.measure(inputs)
        lines.append(f"| {statement.text} | {statement.source} | {shown} | {'yes' if agrees else 'no'} |")
    return "\n".join(lines)
