"""Pinned memory of the host, from which GPUs fetch by themselves."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from store import kernels

WORD = 8  # bytes that a kernel fetches at once, of a multiple of which it makes use
BLOCK = 2048  # words of a program


def pin(memory: Tensor) -> bool:
    """Have GPUs fetch from this memory, until it is unpinned; false where the system does not let it be pinned."""
    return int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0


def unpin(addresses: Iterable[int]) -> None:
    for address in addresses:
        torch.cuda.cudart().cudaHostUnregister(address)


@dataclass(frozen=True)
class PinnedRows:
    """Rows of pinned memory, [B, nbytes] in the end, which a device fetches from their places: nothing is copied on the way."""

    memory: UInt8[Tensor, "n nbytes"]
    rows: Int64[Tensor, "B"]

    def to(self, device: torch.device, non_blocking: bool = False) -> UInt8[Tensor, "B nbytes"]:
        fetched = torch.empty(len(self.rows), self.memory.shape[1], dtype=torch.uint8, device=device)
        if not len(self.rows):
            return fetched
        if kernels.apply_to(fetched) and self.memory.shape[1] % WORD == 0:
            fetch_by_kernel(self.memory, self.rows.to(device, non_blocking=non_blocking), fetched)
        else:
            rows = [self.memory[row] for row in self.rows.tolist()]
            torch._foreach_copy_(list(fetched.unbind()), rows, non_blocking)
        return fetched


def fetch_by_kernel(memory: UInt8[Tensor, "n nbytes"], rows: Int64[Tensor, "B"], out: UInt8[Tensor, "B nbytes"]) -> None:
    from triton import cdiv

    from store.loading.fetch_kernel import fetch

    words = out.view(torch.int64)
    with torch.cuda.device_of(out):  # Triton launches on the current device
        fetch[len(rows), cdiv(words.shape[1], BLOCK)](memory.view(torch.int64), rows, words, words.shape[1], BLOCK)
