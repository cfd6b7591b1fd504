"""Accuracy of a classifier in closed form that learns from a few images of each class, drawn several times."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool

from probe.closed import Closed, Logistic, Neighbours, Ridge, Vectors, described
from probe.geometry import kind_of_vector, vectors, vectors_in
from probe.result_files import over_seeds
from probe.sources import Source, check_pair
from probe.subsets import k_shot, without_each
from store import BeyondClsError, FeatureStore
from store.errors import unknown
from store.format.layout import ArrayName

SHOTS = (1, 2, 5, 10)  # images of each class
DRAWS = 5
# By name; of each there is one value of what else would be selected, as a few images leave none to select on.
CLASSIFIERS: dict[str, Closed] = {
    "lsr": Ridge(alphas=(1024.0,), constant=100.0),  # as big_vision has it
    "logistic": Logistic(cs=(1.0,)),  # scikit-learn's default
    "nearest": Neighbours(ks=(1,), votes="majority"),
}


def few_shot(
    training: FeatureStore,
    test: FeatureStore,
    kinds: Sequence[str],
    *,
    shots: Sequence[int] | None = None,
    draws: int = DRAWS,
    classifier: str = "lsr",
    device: str | torch.device = "cpu",
    advance: Callable[[int], None] = lambda n: None,
) -> Iterator[dict[str, Any]]:
    """Top-1 accuracy, percent, on all test images, of each vector of each block: `top1_5shot`, as `over_seeds` makes it.

    Each draw takes k images of every class, the same of all encoders and vectors; those of a smaller k are among those of a
    larger one. A measure has the value of each draw, and its mean without each group of test images in turn.

    Args:
        training, test: feature sets of one encoder.
        kinds: of `probe.geometry.VECTORS`.
        shots: k; by default those of SHOTS of which every class has enough images.
        classifier: of CLASSIFIERS.
        advance: called with 1 after each vector.

    Raises:
        BeyondClsError: sets that do not belong together, several labels an image, a class with too few images, no such vectors
            in both, or values that cannot be.

    Source: `fewshot_lsr.py` of big_vision's code (Zhai et al. 2022, arXiv 2106.04560), which has 3 draws.
    """
    if classifier not in CLASSIFIERS:
        raise BeyondClsError(unknown("classifier", classifier, CLASSIFIERS))
    if draws < 1 or (shots is not None and not shots):
        raise BeyondClsError(f"draws is {draws} and shots {shots}, expected 1 or more, and numbers such as 1, 5, 10")
    check_pair(training, test)
    of_training, of_test = (vectors_in(store, kinds) for store in (training, test))
    names = [name for name in of_training if name in of_test]
    if not names:
        raise BeyondClsError(
            f"{training.where} and {test.where} have no vector in common; extract both with the same --vectors"
        )
    source, tested = Source(training), Source(test, classes_of=training)
    if shots is None:
        least = min(Counter(source.labels[source.rows].tolist()).values()) if source.labels.ndim == 1 else 1
        shots = [k for k in SHOTS if k <= least]
    drawn = {(k, seed): k_shot(source.labels, k, seed, source.rows) for k in shots for seed in range(draws)}
    learnt = np.unique(np.concatenate(list(drawn.values())))

    def prepared(part: Source, name: ArrayName, rows: np.ndarray) -> Vectors:
        x, labels = torch.from_numpy(vectors(part.store, name, rows)), torch.from_numpy(part.labels[rows].astype(np.int64))
        return Vectors(x.to(device), labels.to(device), part.n_classes)

    for name in names:
        some, of_tested = prepared(source, name, learnt), prepared(tested, name, tested.rows)
        correct: dict[int, list[np.ndarray]] = {k: [] for k in shots}
        for (k, _), rows in drawn.items():
            scores = CLASSIFIERS[classifier].fit(some.rows(np.searchsorted(learnt, rows)), of_tested).scores
            correct[k].append((scores.argmax(1).cpu() == of_tested.labels.cpu()).numpy())
        yield {
            **{"vector": kind_of_vector(name), "block": name.block, "seeds": list(range(draws))},
            "protocol": described(CLASSIFIERS[classifier]) | {"name": classifier},
            **{f"top1_{k}shot": _over_draws(of_draws) for k, of_draws in correct.items()},
        }
        advance(1)


def _over_draws(of_draws: Sequence[Bool[np.ndarray, "N"]]) -> dict[str, Any]:
    """Top-1 accuracy, percent, from whether each test image is right in each draw."""
    without = [without_each(len(one), lambda chosen, one=one: 100 * float(one[chosen].mean())) for one in of_draws]  # type: ignore[misc]
    return over_seeds([100 * float(one.mean()) for one in of_draws], without)
