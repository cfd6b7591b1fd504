"""An encoder before it is loaded: its architecture, where its weights are published, and how to read them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from extract.encoders.download import download
from extract.encoders.published import Published
from extract.encoders.search import Found, averages_in, find, selected, wrapping_in
from extract.encoders.weights import CLASSIFIER, grouped, load_strictly, names_in, plain_name, read_checkpoint, unwrapped
from extract.encoders.without_attention import with_encoder_attributes
from store import BeyondClsError
from store.format.pretraining import JOINT, LABELS, MASKED

# Resize the shorter side to 256 pixels, keep the central 224 (as the official code does for every encoder).
IMAGENET = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "crop_mode": "center",
}

# [cls] of these models differs from that of the paper's, whose fine-tuned MAEs were classified by it (appendix on models).
POOLED = (
    "fine-tuned through the average of its patch tokens, not through [cls]: no label shaped what [cls] holds at the end. "
    "The paper reads [cls] of models that were fine-tuned through it"
)


def timm_model(model: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """A model of timm without classification head, randomly initialised unless pretrained."""
    return with_encoder_attributes(timm.create_model(model, pretrained=pretrained, **{"num_classes": 0, **arguments}))


def cls_caution(model: nn.Module) -> str:
    """A caution about reading [cls] of a trained model; empty if there is none, or no [cls].

    A norm after pooling with its own weights (`fc_norm`) belongs to a classifier of the average.
    """
    norm = getattr(model, "fc_norm", None)
    after_pooling = isinstance(norm, nn.Module) and any(True for _ in norm.parameters())
    return POOLED if after_pooling and getattr(model, "cls_token", None) is not None else ""


@dataclass(frozen=True)
class Loaded:
    """A model with what is known about it.

    Attributes:
        model: with its weights.
        architecture: its name and arguments.
        assumed: what the file does not show and was assumed; empty if nothing.
        cls_caution: a caution about reading its [cls]; empty if there is none.
        notes: what was chosen of a file, and what of it is left out.
        side: of the images that positions in the file are for, in pixels, if the architecture's own is another.
    """

    model: nn.Module
    architecture: dict[str, Any]
    assumed: str = ""
    cls_caution: str = ""
    notes: tuple[str, ...] = ()
    side: int | None = None


@dataclass(frozen=True)
class Choice:
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
    def of(cls, key: str | None, prefix: str | None, ignore: str | Sequence[str] | None) -> "Choice":
        """From values as users write them: patterns with commas or listed, a prefix with or without its last dot."""
        patterns = ignore.split(",") if isinstance(ignore, str) else ignore or ()
        plain = None if prefix is None else plain_name(f"{prefix.rstrip('.')}.").lstrip(".")
        return cls(key, plain, tuple(filter(None, patterns)))


AS_FOUND = Choice()


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
        digest: SHA-256 of the published file, hexadecimal, where known.
        seed: random weights from this seed, instead of published ones.
        note: what a user should know, for `beyondcls encoders`.
        labels: False if it was trained without labels; a file with a classifier is then refused.
        family: how it was trained, `MASKED`, `JOINT` or `LABELS`; empty where it was not trained, or several apply.
        signs: prefixes of names, or of parts of names after a dot, in files of this training and in no other files that fit. A
            local file without any of them is loaded with a warning. None where every file that fits is of this training.
        published: the files that are published for it, or that its training writes; the contract of encoders tests them.
        is_searched: whether a local file may be anyone's, so that the encoder is looked for in it; else `convert` finds it.
    """

    model: str
    weights: str
    licence: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    arguments_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    make: Callable[..., nn.Module] = timm_model
    convert: Callable[[Mapping[str, Any]], Mapping[str, Tensor]] = unwrapped
    transform: Mapping[str, Any] = field(default_factory=dict)
    block: int = -1
    digest: str | None = None
    seed: int | None = None
    note: str = ""
    labels: bool = True
    family: str = ""
    signs: Sequence[str] | None = None
    published: Sequence[Published] = ()
    is_searched: bool = False

    def load(
        self,
        checkpoint: str | Path | None = None,
        random_seed: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        choice: Choice = AS_FOUND,
        registry: Mapping[str, "Pretrained"] | None = None,
    ) -> Loaded:
        """The model, with its weights.

        Args:
            checkpoint: local file; the published weights otherwise.
            random_seed: random weights from this seed instead.
            arguments: of the architecture, instead of those of this entry.
            choice: of what is in the file.
            registry: entries whose files this one could be taken for, if it is searched.

        Raises:
            BeyondClsError: a checkpoint that does not fit, or published weights that cannot be fetched.
        """
        user_arguments = arguments or {}
        arguments = {**self.arguments, **user_arguments}
        if random_seed is None and checkpoint is None:
            random_seed = self.seed
        if random_seed is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(random_seed)
                return Loaded(self.make(self.model, **arguments), self._architecture(arguments))
        if checkpoint is None and self.weights.startswith("timm/"):
            model = _from_timm(self.weights.removeprefix("timm/"), arguments)
            return Loaded(model, self._architecture(arguments), "", cls_caution(model))
        file = Path(checkpoint) if checkpoint is not None else self._published_file()
        content = read_checkpoint(file)
        is_local = checkpoint is not None
        try:
            if self.is_searched:
                model, arguments, found = self.search(content, arguments, choice, registry or {})
            else:
                found, file_arguments = self._read_as_known(content, choice, is_local)
                arguments = {**self.arguments, **file_arguments, **user_arguments}
                model = self.make(self.model, **arguments)
        except BeyondClsError as error:
            raise BeyondClsError(f"{file}: {error}") from error
        place = f", {found.place}" if found.place else ""
        ignored = load_strictly(model, found.state, f"{file}{place} (for {self.model})", choice.ignore)
        notes = [*found.notes, *([f"left out by --ignore: {', '.join(grouped(ignored))}"] if ignored else [])]
        if is_local and (parts := wrapping_in(content)):
            notes.append(f"names are taken without {', '.join(parts)}")
        confirmed = not is_local or self.is_confirmed_by(content)
        assumed = "" if confirmed else f"no name in {file} shows how it was trained, so its name is taken at its word"
        return Loaded(model, self._architecture(arguments), assumed, cls_caution(model), tuple(notes), found.side)

    def search(
        self, content: Mapping[str, Any], arguments: Mapping[str, Any], choice: Choice, registry: Mapping[str, "Pretrained"]
    ) -> tuple[nn.Module, Mapping[str, Any], Found]:
        """The model, its arguments and its tensors in a file; it takes images of the size that positions there are for.

        Raises:
            BeyondClsError: as `find`; or names in the file are those of an entry of the registry whose encoder has tensors of
                these shapes, but another number of attention heads.
        """
        model = self.make(self.model, **arguments)
        found = find(content, model, choice.key, choice.prefix)
        if "img_size" in arguments:
            found = replace(found, side=None)
        elif found.side is not None:
            arguments = {**arguments, "img_size": found.side}
            model = self.make(self.model, **arguments)
        shapes, heads = _shapes(model), _heads(model)
        for name, entry in registry.items():
            if "num_heads" not in entry.arguments:
                continue
            is_theirs = entry.is_confirmed_by(content)
            if not is_theirs and not entry.reads(content):
                continue
            with torch.device("meta"):
                theirs = entry.make(entry.model, **{**entry.arguments, **arguments})
            if _shapes(theirs) != shapes or _heads(theirs) == heads:
                continue
            numbers = f"{name} has {_heads(theirs)} attention heads, {self.model} {heads}, and no tensor shows it"
            remedy = f"give --model {name}, or, if it has {heads}, arguments: {{ num_heads: {heads} }}"
            if is_theirs:
                raise BeyondClsError(f"names in it are those of {name}. {numbers}; {remedy}")
            found = replace(found, notes=(*found.notes, f"it could be of {name}. {numbers}; if it is, give --model {name}"))
        return model, arguments, found

    def _read_as_known(self, content: Mapping[str, Any], choice: Choice, is_local: bool) -> tuple[Found, Mapping[str, Any]]:
        """What `convert` makes of a file, and the arguments that it determines."""
        if choice.key is None and choice.prefix is None:
            state, arguments = self.read(content)
            averages = ", ".join(averages_in(content)) if is_local else ""
            return Found(dict(state), notes=(f"also there, and not taken: {averages}",) if averages else ()), arguments
        state, arguments = self.read(selected(content, choice.key, choice.prefix))
        return Found(dict(state)), arguments

    def read(self, content: Mapping[str, Any]) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """State dict of the model, and arguments that the content of a checkpoint determines.

        Raises:
            BeyondClsError: names in it show that it is of another training.
        """
        state = self.convert(content)
        classifier = [name for name in state if name in CLASSIFIER]
        if classifier and not self.labels:
            raise BeyondClsError(
                f"it has a classifier ({', '.join(classifier)}), so it was trained on labels, expected a file of training "
                "without labels; name its encoder (mae-ft-*, deit-*, …: `beyondcls encoders` lists them), or "
                f"give a name of your own with --model {self.model}"
            )
        return state, self.arguments_of(content)

    def reads(self, content: Mapping[str, Any]) -> bool:
        """Whether the content of a checkpoint has the names of this training's files."""
        try:
            self.read(content)
        except BeyondClsError:
            return False
        return True

    def is_confirmed_by(self, content: Mapping[str, Any]) -> bool:
        """Whether a name in the content of a checkpoint that fits shows that it comes from this training."""
        return self.signs is None or any(f".{sign}" in f".{name}" for name in names_in(content) for sign in self.signs)

    def _architecture(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": self.model.split(".")[0], **arguments}

    def _published_file(self) -> Path:
        if self.weights.startswith("see "):
            raise BeyondClsError(
                f"the weights of {self.model} cannot be fetched by a program; get them from {self.weights[4:]} "
                "and give --checkpoint FILE"
            )
        return download(self.weights, self.digest) if "://" in self.weights else Path(self.weights)


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _heads(model: nn.Module) -> int:
    """Attention heads of its first block that says so; 0 if none does."""
    return next((int(module.num_heads) for module in model.modules() if hasattr(module, "num_heads")), 0)  # type: ignore[arg-type]


def _from_timm(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        return timm_model(name, pretrained=True, **arguments)
    except Exception as error:  # the hub's client raises many kinds; all mean that no weights were fetched
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BeyondClsError(
            f"no weights for {name!r} from the hub ({reason}); check the name and the connection, or give --checkpoint FILE"
        ) from error


__all__ = [
    "AS_FOUND",
    "IMAGENET",
    "JOINT",
    "LABELS",
    "MASKED",
    "POOLED",
    "Choice",
    "Loaded",
    "Pretrained",
    "cls_caution",
    "timm_model",
]
