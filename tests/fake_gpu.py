"""Tests on a GPU that is not there, and the versions of PyTorch that cannot run them."""

import pytest
import torch

ON_A_FAKE_GPU = pytest.mark.skipif(
    torch.__version__.startswith("2.6.") and not torch.cuda.is_available(),
    reason="torch 2.6 asks CUDA's driver in some operations on fake tensors",
)
