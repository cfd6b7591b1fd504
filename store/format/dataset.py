"""A feature set as a data set of torch, for code that has its own training loop."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from store.errors import StoreError
from store.format.array import ArrayReader


class TokenDataset(Dataset[tuple[Any, Any]]):
    """Images as (tokens, label), in any order; made by `FeatureStore.to_torch_dataset`.

    A `torch.utils.data.DataLoader` asks for a whole batch at once, which is read in the order of the disk. It can be sent to
    worker processes, forked or spawned: each opens the files itself.

    Attributes:
        array: of the tokens.
        rows: of the images, int64 [n].
    """

    def __init__(
        self,
        array: ArrayReader,
        labels: np.ndarray,
        rows: np.ndarray,
        dtype: torch.dtype | str | None,
        transform: Callable[[Tensor], Any] | None,
    ):
        named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
        if dtype is not None and not (isinstance(named, torch.dtype) and named.is_floating_point):
            raise StoreError(f"dtype is {dtype!r}, expected float32, float16, bfloat16, float64, or None for what is stored")
        self.array, self.rows, self._labels, self._dtype, self._transform = array, rows, labels, named, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Several images with one reading."""
        rows = self.rows[np.asarray(indices, np.int64)]
        stored = torch.from_numpy(self.array.rows(rows))
        tokens = stored if self._dtype is None else (one.to(self._dtype) for one in stored)  # not all: each is copied again
        labels = self._labels[rows]
        several = [torch.from_numpy(row).float() for row in labels] if labels.ndim > 1 else labels.tolist()
        transformed = tokens if self._transform is None else map(self._transform, tokens)
        return list(zip(transformed, several, strict=True))

    def __repr__(self) -> str:
        return f"TokenDataset({self.array!r}, {len(self)} images)"
