"""What an encoder of the registry is, without its weights: nothing is fetched, and no memory taken for parameters."""

from dataclasses import dataclass

import torch

from extract.encoders.encoder import input_of
from extract.encoders.pretrained import Pretrained, cls_caution


@dataclass(frozen=True)
class Listing:
    """Counts of one encoder.

    Attributes:
        n_parameters: without classification or projection heads.
        n_blocks, width: blocks, and channels of the last block's output.
        block: whose tokens are read, counted from 0.
        n_patches, n_registers, has_cls: the tokens of an image.
        attends: whether it has attention.
        cls_caution: a caution about probing its [cls]; empty if there is none.
    """

    n_parameters: int
    n_blocks: int
    width: int
    block: int
    n_patches: int
    n_registers: int
    has_cls: bool
    attends: bool
    cls_caution: str

    @property
    def tokens(self) -> str:
        """As text: `[cls] + 4 registers + 256`."""
        registers = f"{self.n_registers} registers" if self.n_registers else ""
        return " + ".join(filter(None, ("[cls]" if self.has_cls else "", registers, str(self.n_patches))))


def listing_of(entry: Pretrained) -> Listing:
    """The counts of an entry, from its model on torch's meta device, which computes shapes only."""
    with torch.device("meta"):
        model = entry.make(entry.model, **entry.arguments).eval()
        out = model.forward_features(torch.zeros(1, *input_of(model, entry.transform)["input_size"]))  # type: ignore[operator]
    tokens = out.flatten(2).transpose(1, 2) if out.ndim == 4 else out  # [1, N, D]
    n_blocks, n_prefix = len(model.blocks), int(model.num_prefix_tokens)  # type: ignore[arg-type]
    has_cls = getattr(model, "cls_token", None) is not None
    return Listing(
        n_parameters=sum(parameter.numel() for parameter in model.parameters()),
        n_blocks=n_blocks,
        width=tokens.shape[-1],
        block=entry.block % n_blocks,
        n_patches=tokens.shape[1] - n_prefix,
        n_registers=n_prefix - int(has_cls),
        has_cls=has_cls,
        attends=bool(getattr(model, "attends", True)),
        cls_caution=cls_caution(model),
    )
