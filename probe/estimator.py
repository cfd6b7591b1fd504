"""A head as a scikit-learn classifier, for pipelines, grid searches and cross-validation on arrays in memory."""

import copy
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from probe.grid import HeadSpec, Member
from probe.head import Head
from probe.recipe import PRESET_INITS, Recipe, make_recipe
from probe.stack import Stack
from probe.train import Family, train
from store import BeyondClsError
from store.loading.order import Order

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as missing:
    raise BeyondClsError(
        f"ProbeClassifier is an estimator of scikit-learn ({missing.name} is not installed); pip install 'beyondcls[probe]'"
    ) from missing

ROWS_AT_ONCE = 256  # of a prediction
SETTINGS = ("epochs", "batch_size", "optimiser", "base_lr", "momentum", "weight_decay", "warmup_epochs")  # of a recipe
VECTORS, TOKENS = ("cls",), ("patch",)  # the kinds that X is taken for, by its number of axes


class ProbeClassifier(ClassifierMixin, BaseEstimator):
    """A head that is trained as `beyondcls probe` trains it, with the interface of scikit-learn.

        vectors = store.tokens("cls").rows(rows)  # [n, D]; or tokens [n, T, D]: store.tokens("patch").rows(rows)
        model = ProbeClassifier(epochs=30, warmup_epochs=3).fit(vectors, store.labels[rows])
        cross_val_score(model, vectors, store.labels[rows])

    Where two sets number their classes in other orders, give names: np.array(store.attributes["classes"])[store.labels[rows]].

    X is in memory: vectors [n, D] or tokens [n, T, D], float16, float32 or float64; training is in float32. Feature sets that
    are larger than memory, several seeds in one pass, and heads that read several kinds of features are for `beyondcls.probe`.

    Args:
        aggregator: of tokens: a name in AGGREGATORS that reads patch tokens alone, or FILE.py:CLASS, which runs that file;
            "abmilp" by default. None for vectors, which are classified as they are.
        options: of the aggregator.
        preset: a name in PRESETS.
        epochs, batch_size, optimiser, base_lr, momentum, weight_decay, warmup_epochs: as in `Recipe`; by default the preset's
            or, without one, those of `Recipe`.
        normalisation: of the vector before the classifier: "batch" or "none".
        init: of the classifier: "normal", "small" or "uniform"; the preset's by default.
        random_state: of the start and of the order of the images: a number, a RandomState, or None for another each time.
        device: where it trains and predicts.

    Attributes:
        classes_: labels, ascending, [K].
        head_: the trained head, a module like those of `load_probe`: it reads {"cls": vectors} or {"patch": tokens}.
        curve_: loss and train_top1 (percent) of each epoch.
        n_features_in_: D of vectors, T of tokens.
    """

    def __init__(
        self,
        aggregator: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        preset: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        optimiser: str | None = None,
        base_lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        warmup_epochs: int | None = None,
        normalisation: str = "batch",
        init: str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        device: str | torch.device = "cpu",
    ):
        self.aggregator, self.options, self.preset = aggregator, options, preset
        self.epochs, self.batch_size, self.optimiser, self.base_lr = epochs, batch_size, optimiser, base_lr
        self.momentum, self.weight_decay, self.warmup_epochs = momentum, weight_decay, warmup_epochs
        self.normalisation, self.init, self.random_state, self.device = normalisation, init, random_state, device

    def fit(self, X: Any, y: Any) -> Self:
        """Train a head.

        Args:
            X: vectors [n, D] or tokens [n, T, D]: arrays, or what numpy makes arrays of.
            y: the class of each image, [n]: numbers or names.

        Raises:
            BeyondClsError: an unknown name, a value out of its range, one class, X without what the head reads, or training
                diverged.
            ValueError: what scikit-learn refuses: NaN, other lengths of X and y, numbers in place of classes, …
        """
        X, y = validate_data(self, X, y, dtype=[np.float32, np.float64, np.float16], allow_nd=True, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise BeyondClsError(f"all {len(y)} images are of class {self.classes_[0]!r}, expected 2 classes or more")
        drawn_by = self.random_state
        seed = int(drawn_by if isinstance(drawn_by, Integral) else check_random_state(drawn_by).randint(2**31))
        recipe, device = self._recipe(), torch.device(self.device)
        member = Member("the head", recipe.base_lr, recipe.weight_decay, seed)
        family = Family.of(stack := Stack([self._untrained(X, seed)], device), [member])
        (kind,) = stack.template.aggregator.reads
        train([family], _InMemory(kind, _tensor(X), torch.from_numpy(labels), recipe.at_once, device), None, recipe, seed)
        if family.lost:
            raise BeyondClsError(f"training {family.lost[member]}")
        self.head_, (self.curve_,), self._shape = stack.head(0), family.curves, X.shape[1:]
        return self

    def decision_function(self, X: Any) -> Float[np.ndarray, "n *K"]:
        """Logits [n, K]; of two classes the difference of their logits, [n].

        Raises:
            BeyondClsError: X of other shapes than in `fit`.
            NotFittedError: `fit` was not called.
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n K"]:
        """Softmax of the logits.

        Raises:
            BeyondClsError: as `decision_function`.
        """
        return torch.from_numpy(self._logits(X)).softmax(-1).numpy()

    def predict(self, X: Any) -> Shaped[np.ndarray, "n"]:
        """The most probable class of each image.

        Raises:
            BeyondClsError: as `decision_function`.
        """
        best = self._logits(X).argmax(1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _recipe(self) -> Recipe:
        changed = {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}
        return make_recipe(self.preset, **changed)

    def _untrained(self, X: np.ndarray, seed: int) -> Head:
        """The head as it starts, refused where X does not have what its aggregator reads."""
        if X.ndim > 3:
            raise BeyondClsError(f"X is {list(X.shape)}, expected vectors [n, D] or tokens [n, T, D]; flatten the patches")
        name = self.aggregator or ("cls" if X.ndim == 2 else "abmilp")
        init = self.init or PRESET_INITS.get(self.preset or "", "normal")
        spec = HeadSpec(name, self.options or {}, self.normalisation, init=init)
        head = spec.build(X.shape[-1], X.shape[1] if X.ndim == 3 else None, len(self.classes_), seed=seed)
        held, reads = VECTORS if X.ndim == 2 else TOKENS, tuple(head.aggregator.reads)
        if reads != held:
            raise BeyondClsError(
                f"X is {list(X.shape)}, but aggregator {name!r} reads {', '.join(reads)}: give vectors [n, D] without an "
                "aggregator, tokens [n, T, D] with one that reads patch tokens alone, or train it by beyondcls.probe"
            )
        return head

    @torch.no_grad()
    def _logits(self, X: Any) -> Float[np.ndarray, "n K"]:
        """float64: those of vectors don't depend on how many are computed at once, up to its rounding."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float32, np.float64, np.float16], allow_nd=True, reset=False)
        if X.shape[1:] != self._shape:
            raise BeyondClsError(f"X is {list(X.shape)}, expected [n, {', '.join(map(str, self._shape))}] as in fit")
        dtype = torch.float64 if X.ndim == 2 else torch.float32
        head = copy.deepcopy(self.head_).to(self.device, dtype)
        (kind,) = head.aggregator.reads
        parts = [head({kind: rows.to(self.device, dtype)})[0].double().cpu() for rows in _tensor(X).split(ROWS_AT_ONCE)]
        return torch.cat(parts).numpy()


class _InMemory:
    """Batches of an array in memory; the same images in the same order as of a feature set in memory."""

    def __init__(self, kind: str, x: Shaped[Tensor, "n ..."], labels: Int[Tensor, "n"], batch_size: int, device: torch.device):
        self._kind, self._x, self._labels, self._batch_size, self._device = kind, x, labels, batch_size, device
        self.n_rows = len(x)
        self._order = Order(np.arange(len(x)), len(x), 1, len(x))

    def epoch(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        for rows in torch.from_numpy(self._order.visited(seed)).split(self._batch_size):
            batch = {self._kind: self._x[rows].to(self._device, torch.float32), "label": self._labels[rows].to(self._device)}
            yield {**batch, "row": rows}


def _tensor(x: np.ndarray) -> Tensor:
    """The same memory, or a copy of what torch would not be allowed to write."""
    return torch.from_numpy(x if x.flags.writeable and x.flags.c_contiguous else np.array(x, order="C"))
