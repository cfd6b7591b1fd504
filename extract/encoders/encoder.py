"""A frozen encoder that gives features of a batch of images."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from extract.attention import PER_BLOCK, STATISTICS, TokenLayout, facts_of, watched
from extract.datasets.pixels import Pixels
from extract.encoders.encoded import Collector, Encoded
from extract.encoders.weights import weights_digest
from extract.forward import FastLinear, RoundedLinear, dropping
from extract.registers import N_REGISTERS, NEURONS, Neurons, checked_form, install
from extract.transform import TRANSFORM, UNRECORDED, Normalisation, Views, patch_sides
from store import BeyondClsError, onednn
from store.errors import first_line, unknown
from store.format.pretraining import UNKNOWN, Pretraining

AMP = {"none": "float32", "bf16": "bfloat16", "fp16": "float16"}
AMP_OF = {dtype: amp for amp, dtype in AMP.items()}
INSTEAD = "choose a vit_*, deit_*, beit*, eva* or aimv2_* model"
HIERARCHICAL = "it merges patches between its stages, so its blocks have no one grid of patches"
# By the class of timm's model: what keeps it from being read, and what to use. Others lack what a plain ViT has.
REASONS = {
    **dict.fromkeys(("Hiera", "HieraDet"), (HIERARCHICAL, "choose a plain ViT that was trained by masking, such as mae-b16")),
    **dict.fromkeys(("SwinTransformer", "SwinTransformerV2"), (HIERARCHICAL, INSTEAD)),
    "VisionTransformerSAM": (
        "most of its blocks attend within windows, and all give maps with channels last",
        "choose the encoder that it was trained from, mae-b16, mae-l16 or mae-h14",
    ),
    "Qwen3VitClassifier": ("its blocks are in an encoder within it, behind which tokens are merged", INSTEAD),
    "Qwen3VitEncoder": ("its tokens are maps with channels last, and are merged for a language model", INSTEAD),
    "Gemma4VitClassifier": ("its blocks are in an encoder within it", INSTEAD),
    "Gemma4VitEncoder": ("it pools its tokens for a language model", INSTEAD),
}


class Encoder:
    """A frozen model with what the store has to know about it.

    Args:
        name: as users know it.
        model: has `blocks`, modules whose outputs are tokens [B, N, D] or feature maps [B, D, h, w]; `num_prefix_tokens`;
            `forward_features`, whose output has as many tokens; `cls_token`, not None where [cls] comes first; `norm`, its
            last LayerNorm, if it has one. Each block has `attn`, which calls `scaled_dot_product_attention` once; a model
            without attention says so by `attends = False`. A wrapped model has `branches` in place of `attn`.
        architecture: its name and arguments; part of the key.
        transform: values that replace those that timm knows of the model's input.
        block: whose tokens to keep by default.
        cls_caution: a caution about probing its [cls]; empty if there is none.
        pretraining: how it was trained, as far as known.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        architecture: Mapping[str, Any],
        transform: Mapping[str, Any] | None = None,
        block: int = -1,
        cls_caution: str = "",
        pretraining: Pretraining = UNKNOWN,
    ):
        _check_plain(name, model)
        self.name, self.model = name, model.eval().requires_grad_(False)
        self.architecture = json.dumps(architecture, sort_keys=True)
        self.attends = bool(getattr(model, "attends", True))
        self._branches: list[nn.Module | None] | None = getattr(model, "branches", None)
        has_cls = getattr(model, "cls_token", None) is not None
        self.weights = weights_digest(model)
        self.block = block % self.n_blocks
        self._unrecorded = {name: value for name, value in (transform or {}).items() if name in UNRECORDED}
        self.config = input_of(model, {n: value for n, value in (transform or {}).items() if n not in UNRECORDED})
        self.layout = TokenLayout(has_cls, int(model.num_prefix_tokens), self.grid)  # type: ignore[arg-type]
        self.views = Views(self.config, self._unrecorded.get("cut", "pillow"))
        self.pixels = replace(Pixels.of(self._unrecorded), least=self.views.least)
        self._normalisation = Normalisation(self.config["mean"], self.config["std"])
        self.cls_caution, self.pretraining = cls_caution, pretraining
        self.compute_dtype = "float32"  # in which matrices are multiplied
        self.is_compiled = False
        self.n_untrained = 0  # registers that were added
        self._forward: Callable[[Tensor], Tensor] = model.forward_features  # type: ignore[assignment]
        self._memory_format = torch.contiguous_format
        self._linear: Callable[[], AbstractContextManager[Any]] = FastLinear if onednn.is_faster() else nullcontext

    def run_with(self, amp: str = "none", channels_last: bool = False, compile: bool = False) -> None:
        """Set how to compute.

        Args:
            amp: multiply matrices in "bf16" or "fp16" instead of float32 ("none"); part of the key. Tokens between blocks,
                norms and statistics stay float32.
            channels_last: keep images and weights with channels last, which is faster on some GPUs.
            compile: use `torch.compile`, which takes minutes for each size of batch, and pays for itself on large sets. For a
                single image, which names and shapes come from, and where branches are dropped, it is not used.

        Raises:
            BeyondClsError: unknown `amp`.
        """
        if amp not in AMP:
            raise BeyondClsError(unknown("amp", amp, AMP))
        self.compute_dtype = AMP[amp]
        for module in self.model.modules():
            if type(module) is nn.Linear and amp != "none" and not compile:
                module.__class__ = RoundedLinear
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.model.to(memory_format=self._memory_format)
        if compile:
            self._linear = nullcontext  # inductor chooses
            self._forward = torch.compile(self.model.forward_features, dynamic=False)  # type: ignore[arg-type]
            self.is_compiled = True

    def add_registers(self, neurons: Neurons, n: int = 1) -> None:
        """Add test-time registers, `n` untrained tokens that take what register neurons write into outliers; part of the key.

        They count as registers, and the model's own pooling does not see them. Positions of patches stay as they are. Call it
        once, before `run_with`.

        Args:
            neurons: hidden units of the MLPs, by block, all counted from 0; `beyondcls registers` finds them.

        Source: Jiang et al. 2025, arXiv 2506.08010.

        Raises:
            BeyondClsError: there are such registers already, no such neurons, or more registers than patches; or the model is
                no plain ViT that takes more tokens.
        """
        if self.n_untrained:
            raise BeyondClsError(f"{self.name} has {self.n_untrained} test-time registers; load it again for others")
        neurons = checked_form(f"{NEURONS} of {self.name}", neurons)
        moves = install(self.name, self.model, self.layout, neurons, n)
        self.n_untrained, self.layout = n, replace(self.layout, n_prefix=self.layout.n_prefix + n)
        added = {NEURONS: {str(block): list(units) for block, units in neurons.items()}, N_REGISTERS: n}
        self.architecture = json.dumps({**json.loads(self.architecture), **added}, sort_keys=True)
        try:
            self(torch.zeros(1, *self.config["input_size"]), [self.n_blocks - 1], self.statistics, pooled=True)
        except (RuntimeError, ValueError, IndexError) as error:
            raise BeyondClsError(
                f"{self.name} does not run with {n} more tokens ({first_line(error)}): its positions may be between tokens, or "
                "its tokens be arranged anew; leave test-time registers out"
            ) from error
        if not all(move.has_run for move in moves):
            raise BeyondClsError(f"{self.name} computes MLPs in a way that hooks don't see; leave test-time registers out")

    def normalised(self, views: UInt8[Tensor, "B 3 H W"] | Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 3 H W"]:
        """Views as the encoder takes them, on its device; those that are not uint8 are normalised already."""
        return self._normalisation(views.to(self.device))

    def transform(self, image: Image.Image) -> Float[Tensor, "3 H W"]:
        """View 0 of an image as the encoder takes it, in main memory."""
        return Normalisation(self.config["mean"], self.config["std"])(self.views.evaluation(image))

    def autocast(self, device_type: str) -> torch.autocast:
        """A context in which matrices are multiplied in `compute_dtype`."""
        return torch.autocast(device_type, getattr(torch, self.compute_dtype), enabled=self.compute_dtype != "float32")

    @property
    def n_blocks(self) -> int:
        return len(self.model.blocks)  # type: ignore[arg-type]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of its input."""
        rows, columns = (side // n for side, n in zip(self.config["input_size"][1:], patch_sides(self.model), strict=True))
        return rows, columns

    @property
    def described_transform(self) -> dict[str, Any]:
        """How images become its input, as plain values, for the key."""
        known = {name: self.config[name] for name in TRANSFORM}
        return json.loads(json.dumps({**known, **self._unrecorded, "views": self.views.described}))

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(self.model.parameters()).device

    @property
    def statistics(self) -> tuple[str, ...]:
        """Attention statistics that it can have, without those of other packages, which are computed where they are named."""
        return tuple(name for name in (*STATISTICS.own, *PER_BLOCK.own) if self.can_have(name))

    def can_have(self, statistic: str) -> bool:
        """Whether this encoder can have a statistic: one of [cls] only if it has [cls], none without attention.

        Raises:
            BeyondClsError: the package that it is of cannot be imported.
        """
        if not self.attends or (statistic in PER_BLOCK and self._branches is not None and None in self._branches):
            return False
        return self.layout.has_cls or not facts_of(statistic).of_cls

    @property
    def pools(self) -> bool:
        """Whether it has a pooling by attention of its own (timm's `attn_pool`: SigLIP, Perception Encoder).

        Other poolings, of [cls] or of an average, follow from tokens and are none.
        """
        return getattr(self.model, "attn_pool", None) is not None

    def norm(self) -> tuple[dict[str, Tensor], float | None]:
        """Weight and bias of the final norm, and its eps; empty and None where the encoder has none before pooling.

        An RMSNorm without parameters (CAPI's) has its eps alone.
        """
        norm = getattr(self.model, "norm", None)
        if isinstance(norm, nn.RMSNorm) and norm.weight is None:
            return {}, norm.eps
        if not isinstance(norm, nn.LayerNorm):
            return {}, None
        return {n: p.detach().cpu().float() for n, p in norm.named_parameters()}, norm.eps

    @torch.inference_mode()
    def __call__(
        self,
        images: UInt8[Tensor, "B 3 H W"] | Float[Tensor, "B 3 H W"],
        blocks: Sequence[int],
        statistics: Sequence[str] = (),
        maps: Sequence[int] = (),
        vectors: Sequence[int] = (),
        pooled: bool = False,
        factors: Float[Tensor, "B L 2"] | None = None,
    ) -> Encoded:
        """One forward pass.

        Args:
            images: pixels, as views are cut, or normalised already; on any device.
            blocks: whose output tokens to keep, counted from 0; tokens are taken before any final norm.
            statistics: names of attention statistics, computed in every block.
            maps: blocks whose [cls] row and centre-patch row over the patches to keep, as they are (not renormalised); ignored
                for models without attention.
            vectors: blocks whose average patch token to keep, taken where tokens are, and [cls].
            pooled: whether to keep what the encoder's own pooling makes of the normalised output; ignored where it has none.
            factors: what attention and MLP of each block are multiplied by, on any device (`draw_factors`); nothing by default.

        Raises:
            BeyondClsError: [cls] does not pass through the blocks, or a block's attention cannot be seen.
        """
        images = self.normalised(images)
        modules: Any = self.model.blocks
        seen = Collector(self.layout, blocks, statistics, maps if self.attends else (), vectors)
        with ExitStack() as active:
            for b in {*blocks, *vectors}:
                active.enter_context(modules[b].register_forward_hook(lambda _m, _i, x, b=b: seen.on_tokens(b, x)))
            active.enter_context(
                watched(
                    modules,
                    self.layout,
                    seen.on_attention if seen.sees_attention else None,
                    seen.on_branch if seen.of_block else None,
                    self._branches,
                )
            )
            if factors is not None:
                active.enter_context(dropping(modules, factors.to(images.device)))
            if images.device.type == "cpu":
                active.enter_context(self._linear())  # inside, so that it does not see the many operations of the watcher
            active.enter_context(self.autocast(images.device.type))
            if images.device.type == "cuda":
                active.enter_context(exact_convolutions())
            # Compiled code does not see hooks that come and go.
            forward: Any = self._forward if len(images) > 1 and factors is None else self.model.forward_features
            final = forward(images.contiguous(memory_format=self._memory_format))
            if pooled and self.pools:
                at = self.layout.n_prefix
                given = torch.cat([final[:, : at - self.n_untrained], final[:, at:]], 1) if self.n_untrained else final
                seen.out.pooled = self.model.forward_head(given, pre_logits=True).float()  # type: ignore[operator]
        n_tokens = final.flatten(2).shape[2] if final.ndim == 4 else final.shape[1]
        for block, n_of_block in seen.n_tokens.items():
            if self.attends and n_of_block != n_tokens:  # CaiT and XCiT add [cls] after these blocks
                raise BeyondClsError(
                    f"{self.name} is not a plain ViT: block {block} has {n_of_block} tokens, the output {n_tokens}; {INSTEAD}"
                )
        return seen.encoded()


def _check_plain(name: str, model: nn.Module) -> None:
    """Refuse a model whose blocks do not give [cls], registers and one grid of patches."""
    kind = type(model).__name__
    if kind in REASONS:
        why, instead = REASONS[kind]
        raise BeyondClsError(f"{name} is not a plain ViT: {kind} is not supported, as {why}; {instead}")
    if getattr(getattr(model, "embeds", None), "cls_token", None) is not None:  # it would be taken for a register
        raise BeyondClsError(
            f"{name} is not a plain ViT: {kind} is not supported, as its [cls] is in a module of its own; choose the model of "
            "timm for images of one size, such as vit_base_patch16_radio_v3 in place of naflexvit_base_patch16_radio_v3"
        )
    for attribute in ("blocks", "num_prefix_tokens", "forward_features"):
        if not hasattr(model, attribute):
            raise BeyondClsError(f"{name} is not a ViT: {kind} has no `{attribute}`; {INSTEAD}")


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """A context in which cuDNN does not round float32 to TF32, as it does by default: features are those that the key says."""
    try:
        before = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # someone has set it by PyTorch's newer names, otherwise for convolutions than for the rest
        yield
        return
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def input_of(model: nn.Module, transform: Mapping[str, Any]) -> dict[str, Any]:
    """The input of a model in timm's names (input_size, mean, std, …): as timm knows it, except for `transform`."""
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)  # of the arguments, not of the hub's weights
    known = resolve_model_data_config(model, {"input_size": (3, *size)} if size else None)
    return {**known, **transform}
