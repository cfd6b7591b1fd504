"""The contracts that every entry of a registry keeps, for the tests of packages that bring entries of their own.

    from beyondcls.testing import check_aggregator

    def test_gem():
        check_aggregator("gem")  # as the installed package declares it; or the class itself

Each function takes an entry or its name and returns nothing; what is wrong is an AssertionError that names the check. Neither
pytest nor a network is needed, and random numbers of the caller stay as they are.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from beyondcls.testing.checking import registered, run

if TYPE_CHECKING:
    from torch import Tensor, nn

    from extract.datasets.form import Plain, Published
    from extract.encoders.encoder import Encoder
    from probe.aggregators import Aggregator


def check_encoder(encoder: "str | Encoder | Callable[..., nn.Module | Encoder]", **arguments: Any) -> None:
    """Check an encoder: frozen and deterministic, each image for itself, shapes of tokens, ranges of statistics, a plain key.

    Args:
        encoder: a name for `beyondcls.load_encoder`; a function that makes a model, or what `beyondcls.wrap` makes of
            one; or that.
        arguments: of `load_encoder`, or of the function.

    Raises:
        AssertionError: it breaks the contract.
    """
    from beyondcls.testing.encoders import CHECKS, Made

    run(CHECKS, Made.of(encoder, arguments))


def check_aggregator(aggregator: "str | type[Aggregator]") -> None:
    """Check an aggregator with each of the options that it declares in `variants`.

    Vectors of its width; weights that sum to 1 and move with the patches; it reads what it says and changes nothing; finite on
    large tokens; the same under a seed; many members at once are each of them, gradients included.

    Raises:
        AssertionError: it breaks the contract.
    """
    from beyondcls.testing.aggregators import CHECKS, variants
    from probe.aggregators import AGGREGATORS

    with registered(AGGREGATORS, aggregator) as name:
        for variant in variants(name):
            run(CHECKS, variant)


def check_statistic(statistic: "str | Callable[..., Tensor]") -> None:
    """Check an attention statistic: what it declares, on encoders with and without [cls] and registers.

    Args:
        statistic: a function of an `Attention`, or of what enters a block, what its attention adds, and the layout.

    Raises:
        AssertionError: it breaks the contract.
    """
    from beyondcls.testing.statistics import ATTENTION_CHECKS, BLOCK_CHECKS, cases, is_of_attention
    from extract.attention import PER_BLOCK, STATISTICS

    of_attention = is_of_attention(statistic)
    with registered(STATISTICS if of_attention else PER_BLOCK, statistic) as name:
        for case in cases(name):
            run(ATTENTION_CHECKS if of_attention else BLOCK_CHECKS, case)


def check_dataset(dataset: "str | Plain | Published") -> None:
    """Check a form of data set by the example that it brings: ids, classes, splits, truths, what is missing or damaged.

    Raises:
        AssertionError: it breaks the contract.
    """
    from beyondcls.testing.datasets import FORM_CHECKS, SPLIT_CHECKS, splits
    from extract.datasets import DATASETS

    with registered(DATASETS, dataset) as name:
        run(FORM_CHECKS, name)
        for split in splits(name):
            run(SPLIT_CHECKS, split)


def check_metric(metric: "str | Callable[[Tensor, Tensor], Tensor]", multilabel: bool = False) -> None:
    """Check a metric: many members at once are each of them; perfect logits reach the maximum; no order, nothing changed.

    Args:
        metric: of one label an image, whether each is right, bool [..., B]; of several, percent [...].
        multilabel: which of both a function is; a name says it itself.

    Raises:
        AssertionError: it breaks the contract.
    """
    from beyondcls.testing.metrics import MULTILABEL_CHECKS, PER_IMAGE_CHECKS
    from probe.metrics import MULTILABEL, PER_IMAGE

    multilabel = multilabel or (isinstance(metric, str) and metric in MULTILABEL)
    with registered(MULTILABEL if multilabel else PER_IMAGE, metric) as name:
        run(MULTILABEL_CHECKS if multilabel else PER_IMAGE_CHECKS, name)


__all__ = ["check_aggregator", "check_dataset", "check_encoder", "check_metric", "check_statistic"]
