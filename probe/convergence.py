"""Whether a head is trained out: what a converged classifier reaches on the vectors of its trained aggregator."""

import math
from collections.abc import Mapping, Sequence

from jaxtyping import Bool
from torch import Tensor

from probe.closed import Logistic, Vectors
from probe.metrics import top_k_hits
from probe.passes import HeadPasses, Outcome
from probe.ranks import broadcast_from_first
from probe.result_files import REACHED, SHORT
from probe.select import collapses
from store import BeyondClsError

MOST = 1.0  # standard errors that a head may fall short by; as settings are distinguished (`probe.select`)
# Images x channels x classes of the vectors of all seeds up to which it is measured unasked on a CPU: a minute or two.
AFFORDABLE = 3e8


def converge(passes: HeadPasses, outcomes: Mapping[str, Sequence[Outcome]], wanted: bool | None) -> None:
    """Fit `Logistic` (standardised; its penalty selected on held-out training images) to the vectors of each head's aggregator.

    They are those of the evaluation crops, as for protocols without gradient steps, whichever crops the head was trained on.
    Adds to each outcome `converged`, which test images the fitted classifier is right about, and to its result

    - "converged_top1", the accuracy of that classifier on the test images, percent;
    - "short_of_converged": how far the head is below, in standard errors of the paired difference over test images; 0 where
      both are right about the same images.

    With several labels an image nothing is fitted. Where it cannot be, `passes.say` is called with the reason. Of several
    processes the first fits.

    Args:
        outcomes: trained seeds by head.
        wanted: whether to fit; None: on a CPU where that takes a minute or two, on other devices wherever the vectors fit.
    """
    if passes.training.store.multilabel or wanted is False:
        return
    for name, of_seeds in outcomes.items():
        fitted = broadcast_from_first(_fit_classifiers(passes, of_seeds, wanted) if passes.rank == 0 else "")
        if isinstance(fitted, str):  # what was trained stands
            passes.say(f"{name}: no converged classifier beside it, {fitted}")
            continue
        for outcome, correct in zip(of_seeds, fitted, strict=True):
            assert outcome.correct is not None
            outcome.converged = correct
            difference = 100 * (correct.double() - outcome.correct.double())
            spread = difference.std().item() / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
            outcome.result[REACHED] = 100 * correct.double().mean().item()
            outcome.result[SHORT] = difference.mean().item() / spread if spread else 0.0


def _fit_classifiers(passes: HeadPasses, outcomes: Sequence[Outcome], wanted: bool | None) -> list[Bool[Tensor, "N"]] | str:
    """Which test images the classifier is right about that was fitted to the vectors of each seed's aggregator.

    Or why none was: it would take long and nobody asked for it, memory is short, or too few images to hold some out.
    """
    aggregator, training = outcomes[0].head.aggregator, passes.training
    distinct = outcomes if aggregator.trainable or passes.draws else outcomes[:1]
    n, width, n_classes = passes.n_training, aggregator.width, training.n_classes
    if wanted is None and passes.device.type == "cpu" and n * width * n_classes * len(distinct) > AFFORDABLE:
        return f"{n:,} images x {width:,} channels x {n_classes:,} classes take long; ask for it with --converged"
    fitted = []
    try:
        for outcome in distinct:
            sides = zip((passes.learnt_by(outcome.member.seed), passes.test), passes.vectors_of(outcome), strict=True)
            learn, judge = (Vectors(x, source.labels[source.rows], training.n_classes) for source, x in sides)
            fitted.append(top_k_hits(Logistic().fit(learn, judge).scores, judge.labels).cpu())
    except BeyondClsError as error:
        return str(error)
    return fitted if len(distinct) > 1 else fitted * len(outcomes)


def notes_on_convergence(outcomes: Sequence[Outcome], shows_crops: bool) -> list[str]:
    """That a head is not trained out, or that its weights collapsed: what a reader of its numbers should know.

    Args:
        shows_crops: whether the heads were trained on random crops, which the converged classifier never saw.
    """
    notes, results = [], [outcome.result for outcome in outcomes]
    if all(SHORT in result for result in results):
        short, trained, reached = (sum(r[key] for r in results) / len(results) for key in (SHORT, "top1", REACHED))
        if short > MOST and shows_crops:
            notes.append(
                f"top1 {trained:.1f} where a converged classifier reaches {reached:.1f} on vectors of the evaluation crops, "
                f"{short:.1f} standard errors more: training on random crops costs that much here, or it did not end"
            )
        elif short > MOST:
            notes.append(
                f"not trained out: top1 {trained:.1f} where a converged classifier reaches {reached:.1f} on the same vectors, "
                f"{short:.1f} standard errors more; give more epochs, or other base_lrs and weight_decays"
            )
    if n := sum(collapses(outcome.head, outcome.result.get("entropy")) for outcome in outcomes):
        notes.append(
            f"weights collapsed in {n} of {len(outcomes)} seeds: on fewer than two patches on average (entropy below ln 2); "
            "lower base_lrs, or stronger weight_decays"
        )
    return notes
