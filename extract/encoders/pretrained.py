"""An encoder before it is loaded: its architecture, where its weights are published, and how to read them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import timm
import torch
from timm.models.convnext import ConvNeXt
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn

from extract.encoders.encoder import input_of
from extract.encoders.search import FoundEncoder, averages_in, find, select_tensors, wrapping_in
from extract.encoders.weights import CLASSIFIER, group_names, load_strictly, name_with, plain_name, read_checkpoint, unwrapped
from store import BeyondClsError
from store.errors import first_line, unknown
from store.format.pretraining import FAMILIES, JOINT, LABELS, MASKED

# Resize the shorter side to 256 pixels, keep the central 224 (as the official code does for every encoder).
IMAGENET = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "crop_mode": "center",
}
HALVES = {**IMAGENET, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # pixels from -1 to 1

# [cls] of these models differs from that of the paper's, whose fine-tuned MAEs were classified by it (appendix on models).
POOLED = (
    "fine-tuned through the average of its patch tokens, not through [cls]: no label shaped what [cls] holds at the end. "
    "The paper reads [cls] of models that were fine-tuned through it"
)
# Models of timm without attention, and what they name otherwise than an `Encoder` expects.
WITHOUT_ATTENTION: dict[type[nn.Module], dict[str, str]] = {ConvNeXt: {"blocks": "stages"}, MlpMixer: {"patch_embed": "stem"}}


def timm_model(model: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """A model of timm without classification head, randomly initialised unless pretrained."""
    made = timm.create_model(model, pretrained=pretrained, **{"num_classes": 0, **arguments})
    for kind, names in WITHOUT_ATTENTION.items():
        if isinstance(made, kind):
            # Beside torch's registry of submodules, so that no tensor gets a second name.
            made.__dict__.update({name: getattr(made, theirs) for name, theirs in names.items()})
            made.__dict__.update(attends=False, num_prefix_tokens=0)
    return made


def cls_caution(model: nn.Module) -> str:
    """A caution about reading [cls] of a trained model; empty if there is none, or no [cls].

    A norm after pooling with its own weights (`fc_norm`) belongs to a classifier of the average.
    """
    norm = getattr(model, "fc_norm", None)
    after_pooling = isinstance(norm, nn.Module) and any(True for _ in norm.parameters())
    return POOLED if after_pooling and getattr(model, "cls_token", None) is not None else ""


def checked_family(family: str | None) -> None:
    """Refuse an unknown family."""
    if family is not None and family not in FAMILIES:
        raise BeyondClsError(unknown("family", str(family), FAMILIES, "Leave it out if none of these fits"))


@dataclass(frozen=True)
class TensorChoice:
    """What a user chooses of a file.

    Attributes:
        key: of the dictionary that holds the tensors; "a/b" for one in another. By default found.
        prefix: of their names. By default found.
        ignore: patterns of names, without the prefix, that may be left out.
    """

    key: str | None = None
    prefix: str | None = None
    ignore: tuple[str, ...] = ()

    @classmethod
    def of(cls, key: str | None, prefix: str | None, ignore: str | Sequence[str] | None) -> "TensorChoice":
        """From values as users write them: patterns with commas or listed, a prefix with or without its last dot."""
        patterns = ignore.split(",") if isinstance(ignore, str) else ignore or ()
        plain = None if prefix is None else plain_name(f"{prefix.rstrip('.')}.").lstrip(".")
        return cls(key, plain, tuple(filter(None, patterns)))


AS_FOUND = TensorChoice()


@dataclass(frozen=True)
class Pretrained:
    """An encoder that can be loaded by its name.

    Attributes:
        model: name of the architecture, of timm unless `make` says otherwise.
        weights: where they are published: "timm/NAME" (timm's hub), "https://…" (a file that can be fetched), a path in this
            repository, or, after "see ", the page from which a user has to fetch them.
        licence: of the weights.
        arguments: of the architecture (img_size, …).
        arguments_of: content of the published checkpoint -> arguments that it determines, which replace those above; for
            architectures that were published in variants.
        make: `make(model, **arguments)` returns the model, randomly initialised.
        convert: content of the published checkpoint -> state dict of that model, which must fit exactly. It drops, by name,
            tensors that do not belong to the encoder (decoders, projection heads), and nothing else.
        transform: values that replace those that timm knows for the model: mean, std, crop_pct, interpolation, …
        block: whose tokens are read by default; counted from 0, negative from the end.
        seed: random weights from this seed, instead of published ones.
        note: what a user should know, for `beyondcls encoders`.
        family: how it was trained, `MASKED`, `JOINT` or `LABELS`; empty where it was not trained, or several apply. A file with
            a classifier is refused for an encoder that was trained without labels.
        signs: prefixes of names, or of parts of names after a dot, in files of this training and in no other files that fit. A
            local file without any of them is loaded with a warning. None where every file that fits is of this training.
        is_searched: whether a local file may be anyone's, so that the encoder is looked for in it; else `convert` finds it.
    """

    model: str
    weights: str
    licence: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    arguments_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    make: Callable[..., nn.Module] = timm_model
    convert: Callable[[Mapping[str, Any]], Mapping[str, Tensor]] = unwrapped
    transform: Mapping[str, Any] = field(default_factory=lambda: IMAGENET)
    block: int = -1
    seed: int | None = None
    note: str = ""
    family: str = ""
    signs: Sequence[str] | None = None
    is_searched: bool = False

    def load(
        self,
        checkpoint: str | Path | None = None,
        random_seed: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        choice: TensorChoice = AS_FOUND,
        registry: Mapping[str, "Pretrained"] | None = None,
    ) -> tuple[nn.Module, dict[str, Any], FoundEncoder]:
        """The model with its weights, its name and arguments, and what was found in a file, and notes about it.

        Args:
            checkpoint: local file; the published weights otherwise.
            random_seed: random weights from this seed instead.
            arguments: of the architecture, instead of those of this entry.
            choice: of what is in the file.
            registry: entries whose files this one could be taken for, if it is searched.
        """
        user_arguments = arguments or {}
        arguments = {**self.arguments, **user_arguments}
        architecture, is_local = {"model": self.model.split(".")[0]}, checkpoint is not None
        if random_seed is None and not is_local:
            random_seed = self.seed
        if random_seed is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(random_seed)
                return self.make(self.model, **arguments), {**architecture, **arguments}, FoundEncoder({})
        if checkpoint is None and self.weights.startswith("timm/"):
            name = self.weights.removeprefix("timm/")
            try:
                return timm_model(name, pretrained=True, **arguments), {**architecture, **arguments}, FoundEncoder({})
            except Exception as error:  # the hub's client raises many kinds; all mean that no weights were fetched
                reason = first_line(error) or type(error).__name__
                raise BeyondClsError(
                    f"no weights for {name!r} from the hub ({reason}); check the name and the connection, or give "
                    "--checkpoint FILE"
                ) from error
        file = self._published_file() if checkpoint is None else Path(checkpoint)
        content = read_checkpoint(file)
        try:
            if self.is_searched:
                model, arguments, found = self.search(content, arguments, choice, registry or {})
            else:
                is_chosen = (choice.key, choice.prefix) != (None, None)
                state, of_file = self.read(select_tensors(content, choice.key, choice.prefix) if is_chosen else content)
                averages = ", ".join(averages_in(content)) if is_local and not is_chosen else ""
                found = FoundEncoder(dict(state), notes=(f"also there, and not taken: {averages}",) if averages else ())
                arguments = {**self.arguments, **of_file, **user_arguments}
                model = self.make(self.model, **arguments)
        except BeyondClsError as error:
            raise BeyondClsError(f"{file}: {error}") from error
        place = f", {found.place}" if found.place else ""
        ignored = load_strictly(model, found.state, f"{file}{place} (for {self.model})", choice.ignore)
        notes = [*found.notes, *([f"left out by --ignore: {', '.join(group_names(ignored))}"] if ignored else [])]
        if is_local and (parts := wrapping_in(content)):
            notes.append(f"names are taken without {', '.join(parts)}")
        if is_local and not self.is_confirmed_by(content):
            notes.append(f"no name in {file} shows how it was trained, so its name is taken at its word")
        return model, {**architecture, **arguments}, replace(found, notes=tuple(notes))

    def search(
        self,
        content: Mapping[str, Any],
        arguments: Mapping[str, Any],
        choice: TensorChoice,
        registry: Mapping[str, "Pretrained"],
    ) -> tuple[nn.Module, Mapping[str, Any], FoundEncoder]:
        """The model, its arguments and its tensors in a file; it takes images of the size that positions there are for."""
        model = self.make(self.model, **arguments)
        found = find(content, model, choice.key, choice.prefix)
        if "img_size" in arguments:
            found = replace(found, side=None)
        elif found.side is not None:
            arguments = {**arguments, "img_size": found.side}
            model = self.make(self.model, **arguments)
        shapes, heads = _shapes_and_heads(model)
        for name, entry in registry.items():
            if "num_heads" not in entry.arguments:
                continue
            if not (is_theirs := entry.is_confirmed_by(content)):
                try:
                    entry.read(content)
                except BeyondClsError:
                    continue
            with torch.device("meta"):
                their_shapes, their_heads = _shapes_and_heads(entry.make(entry.model, **{**entry.arguments, **arguments}))
            if their_shapes != shapes or their_heads == heads:
                continue
            numbers = f"{name} has {their_heads} attention heads, {self.model} {heads}, and no tensor shows it"
            remedy = f"give --model {name}, or, if it has {heads}, arguments: {{ num_heads: {heads} }}"
            if is_theirs:
                raise BeyondClsError(f"names in it are those of {name}. {numbers}; {remedy}")
            found = replace(found, notes=(*found.notes, f"it could be of {name}. {numbers}; if it is, give --model {name}"))
        return model, arguments, found

    def read(self, content: Mapping[str, Any]) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """State dict of the model, and arguments that the content of a checkpoint determines."""
        state = self.convert(content)
        classifier = [name for name in state if name in CLASSIFIER]
        if classifier and self.family != LABELS and self.seed is None:
            raise BeyondClsError(
                f"it has a classifier ({', '.join(classifier)}), so it was trained on labels, expected a file of training "
                "without labels; name its encoder (mae-ft-*, deit-*, …: `beyondcls encoders` lists them), or "
                f"give a name of your own with --model {self.model}"
            )
        return state, self.arguments_of(content)

    def is_confirmed_by(self, content: Mapping[str, Any]) -> bool:
        """Whether a name in the content of a checkpoint that fits shows that it comes from this training."""
        return self.signs is None or name_with(content, self.signs) is not None

    def _published_file(self) -> Path:
        """The file of `weights`, fetched unless it is there already; under `torch.hub.get_dir()` (TORCH_HOME moves it)."""
        if self.weights.startswith("see "):
            raise BeyondClsError(
                f"the weights of {self.model} cannot be fetched by a program; get them from {self.weights[4:]} "
                "and give --checkpoint FILE"
            )
        if "://" not in self.weights:
            return Path(self.weights)
        # Many publish a `checkpoint.pth`: the address keeps them apart.
        folder = f"beyondcls-{hashlib.sha256(self.weights.encode()).hexdigest()[:12]}"
        file = Path(torch.hub.get_dir()) / "checkpoints" / folder / self.weights.rsplit("/", 1)[-1]
        if file.is_file():
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        try:  # to a temporary name; renamed when it is whole
            torch.hub.download_url_to_file(self.weights, str(file))
        except (URLError, OSError, RuntimeError, ValueError) as error:
            raise BeyondClsError(
                f"{self.weights} cannot be fetched ({error}); check the connection, or fetch it elsewhere and give "
                "--checkpoint FILE"
            ) from error
        return file


def _shapes_and_heads(model: nn.Module) -> tuple[dict[str, torch.Size], int]:
    """Shapes of its tensors, and attention heads of its first block that says so; 0 if none does."""
    heads = (int(module.num_heads) for module in model.modules() if hasattr(module, "num_heads"))  # type: ignore[arg-type]
    return {name: value.shape for name, value in model.state_dict().items()}, next(heads, 0)


@dataclass(frozen=True)
class Listing:
    """Counts of one encoder.

    Attributes:
        n_parameters: without classification or projection heads.
        width: channels of the last block's output.
        block: whose tokens are read, counted from 0.
        cls_caution: about probing its [cls]; empty if there is none.
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
    """The counts of an entry, from its model on torch's meta device: nothing is fetched, and no memory taken for parameters."""
    with torch.device("meta"):
        model: Any = entry.make(entry.model, **entry.arguments).eval()
        out = model.forward_features(torch.zeros(1, *input_of(model, entry.transform)["input_size"]))
    tokens = out.flatten(2).transpose(1, 2) if out.ndim == 4 else out  # [1, N, D]
    n_blocks, n_prefix = len(model.blocks), int(model.num_prefix_tokens)
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


__all__ = ["AS_FOUND", "HALVES", "IMAGENET", "JOINT", "LABELS", "MASKED", "Pretrained", "TensorChoice", "timm_model"]
