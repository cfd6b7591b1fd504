"""The paper's statements besides AbMILP's gains, and whether the numbers of the full-size check agree."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.report.collect import Inputs
from pipelines.report.tables import difference, listed, signed

MAE, FINE_TUNED, MOCO = "quickstart-mae", "quickstart-mae-ft", "quickstart-mocov3"
NOT_LEARNED = ("central-attention", "cls-attention", "joined-attention", "lowest-entropy-head", "k-means", "norm", "pca")


@dataclass(frozen=True)
class Statement:
    """`agrees`: whether the numbers in `text` are as the paper says."""

    agrees: bool
    text: str


def statements(inputs: Inputs) -> list[Statement]:
    """All of STATEMENTS."""
    return [say(inputs) for say in STATEMENTS]


def patches_attend_to_themselves(inputs: Inputs) -> Statement:
    """Fig. 5."""
    mae, moco = (_last(inputs, encoder, "patch_self") for encoder in (MAE, MOCO))
    how = "more" if mae > moco else "no more"
    return Statement(
        mae > moco,
        f"in the last block patches of the MAE attend to themselves {how} ({mae:.2f}, MoCo’s {moco:.2f} of all, Fig. 5)",
    )


def patches_are_selective(inputs: Inputs) -> Statement:
    """Fig. 6."""
    mae, moco = (_last(inputs, encoder, "patch_patch_entropy") for encoder in (MAE, MOCO))
    how = "more" if mae < moco else "no more"
    return Statement(
        mae < moco,
        f"in the last block patches of the MAE attend to others {how} selectively ({mae:.1f}, MoCo’s {moco:.1f} nats, Fig. 6)",
    )


def cls_is_even(inputs: Inputs) -> Statement:
    """Fig. 4."""
    mae, moco = (_last(inputs, encoder, "cls_patch_entropy") for encoder in (MAE, MOCO))
    most = math.log(inputs.attention[MAE].n_tokens or 1)
    how = "more" if mae > moco else "no more"
    return Statement(
        mae > moco,
        f"in the last block [cls] of the MAE attends to patches {how} evenly "
        f"({mae:.1f}, MoCo’s {moco:.1f} nats of at most {most:.1f}, Fig. 4)",
    )


def cls_keeps_half(inputs: Inputs) -> Statement:
    """Fig. 3: consistently about half."""
    shares = [mean for mean, _ in inputs.attention[MAE].statistics["cls_self"]]
    low, high = (round(100 * share) for share in (min(shares), max(shares)))
    text = f"[cls] of the MAE keeps {low} to {high} % of its attention for itself, by block (about half in Fig. 3)"
    return Statement(all(0.3 < share < 0.7 for share in shares), text)


def no_fixed_choice_reaches_abmilp(inputs: Inputs) -> Statement:
    """Tables 4 and 6."""
    better = [
        f"{head} on {encoder}"
        for encoder in (MAE, MOCO)
        for head in NOT_LEARNED
        if _top1(inputs, encoder, head) >= _top1(inputs, encoder, "abmilp")
    ]
    kinds = "choice of patches by stored attention or by the tokens themselves"
    return Statement(not better, f"AbMILP is reached by {f'the {kinds} {listed(better)}' if better else f'no {kinds}'}")


def attentive_probing_needs_heads(inputs: Inputs) -> Statement:
    """Table 7: one attention head is near AbMILP, twelve are ahead."""
    one, twelve = (
        [_top1(inputs, encoder, head) - _top1(inputs, encoder, "abmilp") for encoder in (MAE, MOCO)]
        for head in ("ap-1", "ap-12")
    )
    agrees = all(many > abs(few) for few, many in zip(one, twelve, strict=True))
    text = (
        f"attentive probing with one head minus AbMILP is {signed(one[0])} points ({signed(one[1])} on MoCo v3), with twelve "
        f"{signed(twelve[0])} ({signed(twelve[1])}; Table 7)"
    )
    return Statement(agrees, text)


def average_is_behind_on_joint(inputs: Inputs) -> Statement:
    """Table 1: DINO, MoCo-v3 and iBOT have [cls] ahead of the average patch."""
    ahead = difference(inputs.probes[MOCO, "average"], inputs.probes[MOCO, "cls"])
    assert ahead is not None
    how = "better" if ahead.mean > 0 else "worse"
    return Statement(ahead.mean < 0, f"the average patch of MoCo v3 is {how} than its [cls] ({signed(ahead.mean)} points)")


@dataclass(frozen=True)
class AfterFineTuning:
    """What fine-tuning through [cls] changes of the MAE's attention.

    Attributes:
        statistic: in the last block, or the mean over all blocks.
        increases: whether the paper says that it is larger then; else smaller.
        text: with {how}, one of "more", "no more", "less" and "no less", and the numbers {after} and {before}.
    """

    statistic: str
    increases: bool
    text: str
    over_blocks: bool = False
    unit: float = 1.0  # of the numbers in the text

    def __call__(self, inputs: Inputs) -> Statement:
        mean = _over_blocks if self.over_blocks else _last
        before, after = (mean(inputs, encoder, self.statistic) for encoder in (MAE, FINE_TUNED))
        agrees = after > before if self.increases else after < before
        how = ("" if agrees else "no ") + ("more" if self.increases else "less")
        return Statement(agrees, self.text.format(how=how, after=after / self.unit, before=before / self.unit))


FINE_TUNING = (
    AfterFineTuning(
        "cls_patch_entropy",
        False,
        "in the last block [cls] of the fine-tuned MAE attends to patches {how} evenly than before "
        "({after:.1f}, before {before:.1f} nats, Fig. 4)",
    ),
    AfterFineTuning(
        "cls_self",
        True,
        "[cls] of the fine-tuned MAE keeps {how} of its attention for itself than before "
        "({after:.0f}, before {before:.0f} % over all blocks, Fig. 3)",
        over_blocks=True,
        unit=0.01,
    ),
    AfterFineTuning(
        "patch_self",
        False,
        "in the last block patches of the fine-tuned MAE attend to themselves {how} than before "
        "({after:.2f}, before {before:.2f} of all, Fig. 5)",
    ),
)
STATEMENTS: Sequence[Callable[[Inputs], Statement]] = (
    patches_attend_to_themselves,
    patches_are_selective,
    cls_is_even,
    cls_keeps_half,
    no_fixed_choice_reaches_abmilp,
    attentive_probing_needs_heads,
    average_is_behind_on_joint,
    *FINE_TUNING,
)


def _last(inputs: Inputs, encoder: str, statistic: str) -> float:
    """Mean of a statistic in the last block."""
    return inputs.attention[encoder].statistics[statistic][-1][0]


def _over_blocks(inputs: Inputs, encoder: str, statistic: str) -> float:
    """Mean of a statistic over all blocks."""
    means = [mean for mean, _ in inputs.attention[encoder].statistics[statistic]]
    return sum(means) / len(means)


def _top1(inputs: Inputs, encoder: str, head: str) -> float:
    return inputs.probes[encoder, head].measures["top1"].mean
