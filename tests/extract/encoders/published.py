"""The files that authors publish: where their tensors are, what they are called, and which computation they are for.

`PUBLISHED` declares the files of every entry of the registry, whose converter never reads it. From it
tests/contracts/test_encoders.py writes such files with random values, loads them under the entry's name, and compares the
encoder's output with a plain computation on the authors' names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

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


def layers(**shapes: str) -> dict[str, str]:
    """Weights of these shapes, and biases."""
    weights = {f"{layer}.weight": shape for layer, shape in shapes.items()}
    return weights | {f"{layer}.bias": shape.split()[0] for layer, shape in shapes.items()}


# All tensors that a ViT may have. D: width of tokens, d: of an attention head, M: between the layers of the MLP, I: of the
# output of the first of them, S: between those that mix tokens; P: pixels of a patch, N: positions, R: registers, T: patches,
# H: heads, O: offsets between patches and [cls], F: periods of the rotation. Outside are also a table of biases of attention
# for all blocks, and periods of rotary positions; inside a mask of the bias of `qkv`, or queries, keys and values one by one,
# a table for one block, frequencies of rotary positions by row and column, fixed weights between tokens, and LayerScale.
OUTSIDE = {"cls": "1 1 D", "registers": "1 R D", "positions": "1 N D", "table": "O H", "periods": "F"}
OUTSIDE |= layers(patches="D 3 P P", norm="D")
INSIDE = {"mask": "3D", "tables": "O H", "frequencies": "2 d", "scale1": "D", "scale2": "D"}
INSIDE |= layers(norm1="D", qkv="3D D", q="D D", k="D D", v="D D", proj="D D", norm2="D", fc1="I D", fc2="D M")
INSIDE |= layers(across1="S T", across2="T S")
SIZES = {"width": "embed_dim", "depth": "depth", "side": "img_size"}  # as timm calls them


class Part(NamedTuple):
    """What a tensor is for (a key of the tables above), and its shape."""

    role: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Published:
    """A file with the tensors of one encoder.

    `tensors()` gives them by their names after `at`; `output` blocks, patches and width of the last block's output;
    `smaller()` a file that takes no time to compute with, and the arguments that make the entry's architecture as small.

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
            "N": ((self.learnt_at or self.side) // self.patch) ** 2 + int(self.cls_position and self.name("cls") is not None),
            "O": (2 * self.grid - 1) ** 2 + 3,
            "P": self.patch,
            "R": self.n_registers,
            "S": self.width // 2,
            "T": self.grid**2,
        }
        return tuple(values[letter] if letter in values else int(letter) for letter in letters.split())


@dataclass(frozen=True)
class Stages(Published):
    """A file of a ConvNeXt; its tokens are feature maps.

    Attributes:
        widths, depths: of the four stages.
        first, down, block: prefixes of the names of the first layers, of those before a stage, and of a block.
        mix, wide, narrow, norm: names of a block's three layers, and of the norm after pooling.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    first: str = "stem."
    down: str = "stages.{}.downsample."
    block: str = "stages.{}.blocks.{}."
    mix: str = "conv_dw"
    wide: str = "mlp.fc1"
    narrow: str = "mlp.fc2"
    norm: str = "head.norm"
    heads: ClassVar[int] = 0
    pooled: ClassVar[bool] = True

    @property
    def output(self) -> tuple[int, int, int]:
        return len(self.depths), (self.side // 32) ** 2, self.widths[-1]

    def tensors(self) -> dict[str, Part]:
        layers: dict[str, tuple[str, tuple[int, ...]]] = {  # by name: what each is for, and its shape
            f"{self.first}0": ("conv", (self.widths[0], 3, 4, 4)),
            f"{self.first}1": ("norm", self.widths[:1]),
            self.norm: ("norm", self.widths[-1:]),
        }
        gammas = {}
        for stage, (before, width, depth) in enumerate(zip((0, *self.widths), self.widths, self.depths, strict=False)):
            if stage:
                layers |= {f"{self.down}0".format(stage): ("norm", (before,))}
                layers |= {f"{self.down}1".format(stage): ("conv", (width, before, 2, 2))}
            for name in (self.block.format(stage, index) for index in range(depth)):
                gammas[f"{name}gamma"] = Part("scale", (width,))
                layers |= {f"{name}{self.mix}": ("conv", (width, 1, 7, 7)), f"{name}norm": ("norm", (width,))}
                layers |= {f"{name}{self.wide}": ("wide", (4 * width, width))}
                layers |= {f"{name}{self.narrow}": ("narrow", (width, 4 * width))}
        weights = {f"{name}.weight": Part(f"{role}.weight", shape) for name, (role, shape) in layers.items()}
        return weights | {f"{name}.bias": Part(f"{role}.bias", shape[:1]) for name, (role, shape) in layers.items()} | gammas

    def smaller(self) -> tuple[Self, dict[str, Any]]:
        widths, depths = (8, 16, 24, 32), (1, 2, 1, 1)
        return replace(self, widths=widths, depths=depths), {"dims": widths, "depths": depths}


# The usual sizes, at 224 pixels.
VIT_S, VIT_B, VIT_L, VIT_H = Vit(384, 12, 6), Vit(768, 12, 12), Vit(1024, 24, 16), Vit(1280, 32, 16, patch=14)
CLASSIFIER = ("head.weight", "head.bias")
AT_224 = {"width": "embed_dim", "depth": "depth"}  # sizes where a converter's positions are those of 224 pixels
LAYER_SCALE = {"scale1": "ls1.gamma", "scale2": "ls2.gamma"}
QUICKSTART = Vit(192, 6, 6, patch=4, side=32, tells=False)


def behind(place: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{place}{name}" for name in names)


def mae(vit: Vit) -> tuple[Vit, ...]:
    """Of the encoder alone, and as the training script writes it."""
    alone = replace(vit, at="model/", tells=False)
    decoder = ("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_blocks.0.norm1.weight", "decoder_pred.bias")
    return alone, replace(alone, dropped=behind("model/", *decoder), tells=True)


def mae_finetuned(vit: Vit) -> tuple[Vit, ...]:
    """Through the average, and through [cls]."""
    through_cls = replace(vit, at="model/", dropped=behind("model/", *CLASSIFIER), tells=False)
    return replace(through_cls, names={"norm": "fc_norm"}, pooled=True, tells=True), through_cls


def maskfeat(vit: Vit) -> tuple[Vit, ...]:
    predicted = ("mask_token", "hogs.0.weight_x", "pred_head.transforms.0.0.weight", "pred_head.projections.0.bias")
    return (replace(vit, at="model_state/", names={"norm": None}, dropped=behind("model_state/", *predicted)),)


# Names in BEiT's files of tensors that a plain ViT lacks or names differently; keys have no bias.
BEIT: dict[str, str | None] = {
    **dict.fromkeys(("positions", "qkv.bias")),
    "q.bias": "attn.q_bias",
    "v.bias": "attn.v_bias",
    "scale1": "gamma_1",
    "scale2": "gamma_2",
}
OF_ALL = BEIT | {"table": "rel_pos_bias.relative_position_bias_table"}
OF_EACH = BEIT | {"tables": "attn.relative_position_bias_table"}
INDEX_OF_EACH = "blocks.{}.attn.relative_position_index"


def beitv2(vit: Vit) -> tuple[Vit, ...]:
    """Of its authors; of DeepSpeed; of timm."""
    words = ("mask_token", "cls_pt_layers.0.norm1.weight", "lm_head.weight", "lm_head.bias")
    dropped = ("rel_pos_bias.relative_position_index", *words)
    of_authors, of_deepspeed = (replace(vit, at=at, names=OF_ALL, dropped=behind(at, *dropped)) for at in ("model/", "module/"))
    return of_authors, of_deepspeed, replace(vit, names=OF_EACH, dropped=(INDEX_OF_EACH,), tells=False)


DROPPED_OF_SIMMIM = (
    *behind("model/encoder.", "mask_token", "rel_pos_bias.relative_position_index"),
    "model/decoder.0.weight",
)


def simmim_finetuned() -> tuple[Vit, ...]:
    dropped = behind("model/", *CLASSIFIER, INDEX_OF_EACH)
    alone = replace(VIT_B, at="model/", names=OF_EACH | {"norm": "fc_norm"}, pooled=True, dropped=dropped, tells=False)
    return replace(alone, dropped=(*dropped, "max_accuracy"), tells=True), alone


def ijepa(vit: Vit) -> tuple[Vit, ...]:
    dropped = behind("predictor/module.", "mask_token", "predictor_embed.bias")
    return (replace(vit, at="target_encoder/module.", names={"cls": None}, twins=("encoder/module.",), dropped=dropped),)


CAPI = Vit(
    1024,
    24,
    16,
    patch=14,
    at="backbone.",
    names={
        **dict.fromkeys(("cls", "positions", "qkv", "norm")),
        "registers": "registers",
        "patches": "patch_embed",
        "block": "encoder.blocks.{}.",
        "norm1": "residual1.norm",
        **{part: f"residual1.fn.{part}_proj" for part in "qkv"},
        "frequencies": "residual1.fn.rope.freqs",
        "proj": "residual1.fn.proj",
        "norm2": "residual2.norm",
        "fc1": "residual2.fn.fc1",
        "fc2": "residual2.fn.fc2",
    },
    n_registers=16,
    biases=False,
    rms=True,
    eps=1e-5,
    sizes=SIZES | {"width": "dim"},
    dropped=("backbone.mask_token", "backbone.decoder.blocks.0.residual1.norm.weight", "head.last_layer.weight_v"),
    tells=False,
)


def dino(vit: Vit) -> tuple[Vit, ...]:
    """Of the backbone; of the whole training; and of the whole training in parallel."""
    of_student = "student/module.head.mlp.0.weight"
    dropped = (*behind("teacher/head.", "mlp.0.weight", "last_layer.weight_g"), of_student, "dino_loss/center")
    whole = replace(vit, at="teacher/backbone.", twins=("student/module.backbone.",), dropped=dropped)
    dropped = ("teacher/module.head.mlp.0.weight", "dino_loss/center")
    return replace(vit, tells=False), whole, replace(whole, at="teacher/module.backbone.", dropped=dropped)


def ibot(vit: Vit) -> tuple[Vit, ...]:
    """Of the backbone, and of the whole training."""
    dropped = ("teacher/head.last_layer2.weight_g", "student/module.backbone.masked_embed", "ibot_loss/center2")
    whole = replace(vit, at="teacher/backbone.", twins=("student/module.backbone.",), dropped=dropped)
    return replace(vit, at="state_dict/", tells=False), whole


def dinov2(vit: Vit, n_registers: int = 0) -> tuple[Vit, ...]:
    names = {**vit.names, **LAYER_SCALE} | ({"registers": "register_tokens"} if n_registers else {})
    return (replace(vit, patch=14, learnt_at=518, names=names, n_registers=n_registers, dropped=("mask_token",), sizes=AT_224),)


GIANT = Vit(1536, 40, 24, hidden=4096, swiglu=True, names={"fc1": "mlp.w12", "fc2": "mlp.w3"})


def franca(vit: Vit, hidden: int, learnt_at: int) -> Vit:
    return replace(
        vit,
        patch=14,
        learnt_at=learnt_at,
        hidden=hidden,
        swiglu=True,
        at="teacher/backbone.",
        names={**LAYER_SCALE, "block": "blocks.{chunk}.{}.", "fc1": "mlp.w12", "fc2": "mlp.w3"},
        n_chunks=4,
        sizes=AT_224,
        dropped=behind("teacher/", "backbone.mask_token", "dino_head.last_layer.weight_v", "ibot_head.last_layer.weight_v"),
    )


def dinov3(vit: Vit) -> tuple[Vit, ...]:
    names = {"registers": "storage_tokens", "positions": None, "periods": "rope_embed.periods", "mask": "attn.qkv.bias_mask"}
    return (replace(vit, names=LAYER_SCALE | names, n_registers=4, eps=1e-5, dropped=("mask_token",)),)


def mocov3(vit: Vit) -> tuple[Vit, ...]:
    """Of the whole training, and of its linear classifier."""
    projection = ("head.0.weight", "head.1.weight", "head.1.running_mean", "head.7.num_batches_tracked")
    ours, theirs = "state_dict/module.base_encoder.", "state_dict/module.momentum_encoder."
    dropped = (*behind(ours, *projection), *behind(theirs, *projection), "state_dict/module.predictor.0.weight")
    whole = replace(vit, at=ours, twins=(theirs,), dropped=dropped)
    return whole, replace(vit, at="state_dict/module.", dropped=behind("state_dict/module.", *CLASSIFIER), tells=False)


def deit(vit: Vit) -> tuple[Vit, ...]:
    return (replace(vit, at="model/", dropped=behind("model/", *CLASSIFIER), tells=False),)


def augreg(vit: Vit) -> tuple[Vit, ...]:
    return (replace(vit, dropped=CLASSIFIER, tells=False),)


def convnext(of_timm: Stages) -> tuple[Stages, ...]:
    prefixes = {"first": "downsample_layers.0.", "down": "downsample_layers.{}.", "block": "stages.{}.{}."}
    layers = {"mix": "dwconv", "wide": "pwconv1", "narrow": "pwconv2", "norm": "norm"}
    of_authors = replace(of_timm, at="model/", dropped=behind("model/", *CLASSIFIER), **prefixes, **layers)
    return of_authors, replace(of_timm, dropped=("head.fc.weight", "head.fc.bias"))


MIXER = Vit(
    768,
    12,
    0,
    names={
        **dict.fromkeys(("cls", "positions", "qkv", "proj")),
        "patches": "stem.proj",
        "across1": "mlp_tokens.fc1",
        "across2": "mlp_tokens.fc2",
        "fc1": "mlp_channels.fc1",
        "fc2": "mlp_channels.fc2",
    },
    dropped=CLASSIFIER,
    sizes={"side": "img_size"},
)
SIZED = {"s16": VIT_S, "b16": VIT_B, "l16": VIT_L, "h14": VIT_H}
SIZED |= {"s8": replace(VIT_S, patch=8), "b8": replace(VIT_B, patch=8), "s14": VIT_S, "b14": VIT_B, "l14": VIT_L, "g14": GIANT}


def sized(family: str, make: Callable[..., tuple[Published, ...]], sizes: str, *given: Any) -> dict[str, tuple[Published, ...]]:
    return {f"{family}-{size}": make(SIZED[size], *given) for size in sizes.split()}


# By the name of the entry: the files that are published for it, or that its training writes.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "quickstart-mae": (QUICKSTART,),
    "quickstart-mocov3": (QUICKSTART,),
    "quickstart-mae-ft": (replace(QUICKSTART, dropped=CLASSIFIER),),
    "quickstart-random": (QUICKSTART,),
    **sized("mae", mae, "s16 b16 l16 h14"),
    **sized("mae-ft", mae_finetuned, "s16 b16 l16 h14"),
    "simmim-b16": (replace(VIT_B, at="model/encoder.", names=OF_ALL, dropped=DROPPED_OF_SIMMIM),),
    "simmim-ft-b16": simmim_finetuned(),
    **sized("maskfeat", maskfeat, "b16 l16"),
    **sized("beitv2", beitv2, "b16 l16"),
    "ijepa-h14": ijepa(VIT_H),
    "ijepa-h16-448": ijepa(replace(VIT_H, patch=16, side=448)),
    "ijepa-g16": ijepa(Vit(1408, 40, 16, hidden=6144)),
    **dict.fromkeys(("capi-l14", "capi-l14-in22k", "capi-l14-lvd", "capi-l14-p205"), (CAPI,)),
    **sized("dino", dino, "s16 s8 b16 b8"),
    **sized("dinov2", dinov2, "s14 b14 l14 g14"),
    **sized("dinov2-reg", dinov2, "s14 b14 l14 g14", 4),
    **sized("dinov3", dinov3, "s16 b16 l16"),
    "franca-b14": (franca(VIT_B, 2048, 518),),
    "franca-l14": (franca(VIT_L, 2736, 518), franca(VIT_L, 2736, 224)),
    "mocov3-s16": mocov3(replace(VIT_S, heads=12)),
    "mocov3-b16": mocov3(VIT_B),
    **sized("ibot", ibot, "s16 b16 l16"),
    **sized("deit", deit, "s16 b16"),
    **sized("augreg", augreg, "s16 b16"),
    "convnext-b": convnext(Stages((128, 256, 512, 1024), (3, 3, 27, 3))),
    "convnext-t": convnext(Stages((96, 192, 384, 768), (3, 3, 9, 3))),
    "mixer-b16": (MIXER,),
}
