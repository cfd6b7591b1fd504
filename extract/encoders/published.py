"""The files that authors publish: where their tensors are, what they are called, and which computation they are for.

An entry of the registry declares its files beside its converter, which never reads the declaration. From it
tests/contracts/test_encoders.py writes such files with random values, loads them under the entry's name, and compares the
encoder's output with a plain computation on the authors' names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple, Self

# Names in a plain ViT, by role; `block` is the prefix of the names in a block.
NAMES: dict[str, str | None] = {
    "cls": "cls_token",
    "positions": "pos_embed",
    "patches": "patch_embed.proj",
    "block": "blocks.{}.",
    "norm1": "norm1",
    "qkv": "attn.qkv",
    "proj": "attn.proj",
    "norm2": "norm2",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
    "norm": "norm",
}
# All tensors that a ViT may have. D: width of tokens, d: of an attention head, M: between the layers of the MLP, I: of the
# output of the first of them, S: between those that mix tokens; P: pixels of a patch, N: positions, R: registers, T: patches,
# H: heads, O: offsets between patches and [cls], F: periods of the rotation.
OUTSIDE = {
    "cls": "1 1 D",
    "registers": "1 R D",
    "positions": "1 N D",
    "patches.weight": "D 3 P P",
    "patches.bias": "D",
    "table": "O H",  # of biases of attention, for all blocks
    "periods": "F",  # of rotary positions
    "norm.weight": "D",
    "norm.bias": "D",
}
INSIDE = {
    "norm1.weight": "D",
    "norm1.bias": "D",
    "qkv.weight": "3D D",
    "qkv.bias": "3D",
    "mask": "3D",  # of that bias
    **{f"{part}.{kind}": shape for part in "qkv" for kind, shape in (("weight", "D D"), ("bias", "D"))},  # one by one
    "tables": "O H",  # of biases of attention, for one block
    "frequencies": "2 d",  # of rotary positions, by row and column
    "proj.weight": "D D",
    "proj.bias": "D",
    "across1.weight": "S T",  # in place of attention: fixed weights between tokens
    "across1.bias": "S",
    "across2.weight": "T S",
    "across2.bias": "T",
    "scale1": "D",  # LayerScale
    "norm2.weight": "D",
    "norm2.bias": "D",
    "fc1.weight": "I D",
    "fc1.bias": "I",
    "fc2.weight": "D M",
    "fc2.bias": "D",
    "scale2": "D",
}


SIZES = {"width": "embed_dim", "depth": "depth", "side": "img_size"}  # as timm calls them


class Part(NamedTuple):
    """What a tensor is for (a key of the tables above), and its shape."""

    role: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Published(ABC):
    """A file with the tensors of one encoder.

    Attributes:
        at: where they are: keys of dictionaries from the top, each followed by "/", then the prefix of their names;
            "model/encoder." is `content["model"]["encoder.…"]`.
        dropped: tensors that do not belong to the encoder, from the top, whose shapes don't matter; `{}` is every block.
        twins: where other networks with the same names and shapes are, as `at`.
        tells: whether names in the file show how it was trained.
        side: of the square images, in pixels.
        eps: of its norms.
    """

    at: str = ""
    dropped: Sequence[str] = ()
    twins: Sequence[str] = ()
    tells: bool = True
    side: int = 224
    eps: float = 1e-6

    @property
    @abstractmethod
    def output(self) -> tuple[int, int, int]:
        """Blocks, patches and width of the last block's output."""

    @abstractmethod
    def tensors(self) -> dict[str, Part]:
        """Tensors of the encoder, by their names after `at`."""

    @abstractmethod
    def smaller(self) -> tuple[Self, dict[str, Any]]:
        """A file that takes no time to compute with, and the arguments that make the entry's architecture as small."""


@dataclass(frozen=True)
class Vit(Published):
    """A file of a ViT: a plain one with [cls] and learnt positions by default.

    Attributes:
        width, depth, heads: of its tokens, blocks, and attention heads.
        patch: side of a patch, in pixels.
        names: of its tensors, where they differ from `NAMES`; None for those that it lacks, more for those that it has
            besides ("scale1" and "scale2" of LayerScale, "registers", "q", "k" and "v" in place of "qkv", …: `OUTSIDE`,
            `INSIDE`). The name of a layer stands for its weight and bias; "qkv.bias" names the bias alone.
        n_registers: between [cls] and patches, without positions.
        cls_position: whether the first position is that of [cls].
        learnt_at: side of the images that positions were learnt for, in pixels; `side` by default.
        hidden: width between the layers of the MLP; four times that of tokens by default.
        swiglu: the MLP's first layer gives a gate, to which silu is applied, and the values that it multiplies.
        biases: whether norms and layers of the blocks have any; `names` may remove single ones.
        rms: norms divide by the root mean square, and subtract no mean.
        pooled: the last norm is after pooling; tokens are never normalised.
        sizes: arguments of the architecture that are its `width`, `depth` and `side`, by these names; fewer if some are fixed.
        n_chunks: groups of neighbouring blocks of one size, for `{chunk}` in the prefix of the names in a block.
    """

    width: int
    depth: int
    heads: int
    _: KW_ONLY
    patch: int = 16
    names: Mapping[str, str | None] = field(default_factory=dict)
    n_registers: int = 0
    cls_position: bool = True
    learnt_at: int | None = None
    hidden: int | None = None
    swiglu: bool = False
    biases: bool = True
    rms: bool = False
    pooled: bool = False
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES)
    n_chunks: int = 1

    @property
    def grid(self) -> int:
        """Patches along an edge of the image."""
        return self.side // self.patch

    @property
    def learnt_grid(self) -> int:
        """Patches along an edge of the images that positions were learnt for."""
        return (self.learnt_at or self.side) // self.patch

    @property
    def output(self) -> tuple[int, int, int]:
        return self.depth, self.grid**2, self.width

    def name(self, role: str, block: int | None = None) -> str | None:
        """The name of a tensor, after `at`; None if the file lacks it.

        Args:
            role: a key of `OUTSIDE`, or of `INSIDE` for a tensor of a block.
            block: counted from 0.
        """
        names = {**NAMES, **self.names}
        layer, dot, kind = role.partition(".")
        layer_name = names.get(layer)
        name = names.get(role, layer_name and f"{layer_name}{dot}{kind}")
        if name is None or block is None:
            return name
        chunk = block * self.n_chunks // self.depth
        return None if kind == "bias" and not self.biases else f"{names['block']}{name}".format(block, chunk=chunk)

    def tensors(self) -> dict[str, Part]:
        block_parts = [(role, shape, block) for block in range(self.depth) for role, shape in INSIDE.items()]
        parts = [*((role, shape, None) for role, shape in OUTSIDE.items()), *block_parts]
        return {
            name: Part(role, self._shape(shape)) for role, shape, block in parts if (name := self.name(role, block)) is not None
        }

    def smaller(self) -> tuple[Self, dict[str, Any]]:
        """Two blocks, 8 channels in each attention head, 5 x 5 patches; where the architecture leaves the choice."""
        every = {"width": 8 * self.heads, "depth": 2, "side": 5 * self.patch}
        small: dict[str, Any] = {size: value for size, value in every.items() if size in self.sizes}
        hidden = self.hidden and self.hidden * small.get("width", self.width) // self.width
        return replace(self, hidden=hidden, **small), {self.sizes[size]: value for size, value in small.items()}

    def _shape(self, letters: str) -> tuple[int, ...]:
        hidden = self.hidden or 4 * self.width
        head = self.width // max(self.heads, 1)
        values = {
            "D": self.width,
            "3D": 3 * self.width,
            "d": head,
            "F": head // 4,
            "H": self.heads,
            "I": 2 * hidden if self.swiglu else hidden,
            "M": hidden,
            "N": self.learnt_grid**2 + int(self.cls_position and self.name("cls") is not None),
            "O": (2 * self.grid - 1) ** 2 + 3,
            "P": self.patch,
            "R": self.n_registers,
            "S": self.width // 2,
            "T": self.grid**2,
        }
        return tuple(values[letter] if letter in values else int(letter) for letter in letters.split())


# The usual sizes, at 224 pixels.
VIT_S, VIT_B, VIT_L, VIT_H = Vit(384, 12, 6), Vit(768, 12, 12), Vit(1024, 24, 16), Vit(1280, 32, 16, patch=14)
