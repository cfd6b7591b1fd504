"""Encoders of other libraries, and those that a user's code makes: each is wrapped.

mine.py:make                          a function in a file, or package.module:make
transformers:facebook/dinov2-base     a model of Hugging Face's hub, or a folder with config.json and safetensors
torchvision:vit_b_16                  with its default weights
open_clip:ViT-B-16/laion2b_s34b_b88k  the image tower
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from extract.encoders.encoder import Encoder
from extract.encoders.wrapped import wrap
from extract.transform import checked_transform
from store import BeyondClsError
from store.errors import first_line
from store.format.pretraining import Pretraining
from store.plugins import Plugin
from store.user_code import custom_digest, explaining, function_of, is_custom

# Names of timm and OpenCLIP: models of Hugging Face's hub, or in a folder with config.json and safetensors.
OF_HUBS = ("hf-hub:", "hf_hub:", "local-dir:")
RESAMPLING = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers, which processors have


class LibraryModel(NamedTuple):
    """A model that is to be wrapped, and arguments of `wrap` that its library knows."""

    model: nn.Module
    known: Mapping[str, Any] = {}


def is_of_library(name: str) -> bool:
    """Whether a name says who makes the model: LIBRARY:NAME, FILE.py:FUNCTION, package.module:function."""
    return ":" in name and not name.startswith(OF_HUBS)


def is_users(name: str) -> bool:
    """Whether code of the user's makes the model: FILE.py:FUNCTION, or package.module:function."""
    return is_of_library(name) and name.partition(":")[0] not in LIBRARIES


def load_from_library(
    name: str,
    definer: str,
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
    declared: tuple[Plugin, Callable[..., Any]] | None = None,
) -> Encoder:
    """The wrapped encoder of a name.

    Args:
        name: as users know it.
        definer: LIBRARY:NAME, FILE.py:FUNCTION or package.module:function.
        arguments: of the function; of a library, arguments of `wrap` (blocks, norm, has_cls, patch_size, …), and
            `random_seed`, for random weights in place of published ones.
        options: of `wrap`, which win: input_size, mean, std, …
        declared: the entry of another package that `definer` names, and its function.
    """
    library, _, rest = definer.partition(":")
    options = {name: value for name, value in options.items() if value is not None}
    if library in LIBRARIES and declared is None:
        arguments = dict(arguments)
        seed = arguments.pop("random_seed", None)
        made = _load_from_library(definer, library, rest, seed)
        architecture: dict[str, Any] = {"model": definer, **({} if seed is None else {"random_seed": seed})}
        return wrap(made.model, name, architecture=architecture, **{**made.known, **arguments, **options})
    if declared is None:
        make = function_of(definer, "encoder", "a torch.nn.Module", f"one of {', '.join(LIBRARIES)} before the colon, ")
        # Of the file with the function, so that other code is another key.
        if is_custom(definer):
            digest = custom_digest(definer)
        else:
            file = inspect.getsourcefile(inspect.unwrap(make))
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
        architecture = {"model": definer, "code": digest[:32], **arguments}
    else:
        plugin, make = declared
        architecture = {"model": definer, "package": plugin.package, "code": plugin.digest()[:32], **arguments}
    with explaining(definer, f"{definer} fails"):
        made_by_user = make(**arguments)
    if isinstance(made_by_user, nn.Module):
        return wrap(made_by_user, name, architecture=architecture, **options)
    if not isinstance(made_by_user, Encoder):
        raise BeyondClsError(
            f"{definer} returns {type(made_by_user).__name__}, expected a torch.nn.Module, or what beyondcls.wrap makes of one"
        )
    if "input_size" in options:
        raise BeyondClsError(
            f"the function of {name} has wrapped it for its own input size; leave input_size out, or wrap for it"
        )
    if made_by_user.n_untrained:
        raise BeyondClsError(f"the function of {name} has added test-time registers; leave them to --register-neurons")
    pretraining = Pretraining(options.pop("family")) if "family" in options else made_by_user.pretraining
    transform = {key: value for key, value in made_by_user.described_transform.items() if key != "views"}
    transform |= checked_transform(options)
    caution = made_by_user.cls_caution
    return Encoder(name, made_by_user.model, architecture, transform, made_by_user.block, caution, pretraining)


def _load_from_library(definer: str, library: str, name: str, seed: int | None) -> LibraryModel:
    try:
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            return LIBRARIES[library](name, seed)
    except BeyondClsError:
        raise
    except ImportError as error:
        raise BeyondClsError(f"{definer} needs {library} ({error}): pip install 'beyondcls[{library}]'") from error
    except Exception as error:  # hubs and libraries raise many kinds
        raise BeyondClsError(
            f"{definer} could not be loaded ({first_line(error) or type(error).__name__}); check the name and the connection"
        ) from error


def _load_transformers(name: str, seed: int | None) -> LibraryModel:
    """The model that AutoModel gives, its vision tower if it has two, and what its image processor does."""
    import transformers

    if seed is None:
        model = transformers.AutoModel.from_pretrained(name)
    else:
        model = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(name))
        if Path(name).is_dir() and not (Path(name) / "preprocessor_config.json").is_file():
            return of_transformers(model)
    return of_transformers(model, transformers.AutoImageProcessor.from_pretrained(name))


def of_transformers(model: Any, processor: Any = None) -> LibraryModel:
    """A model of transformers, its vision tower if it has two, and arguments of `wrap` as its image processor has them."""
    tower = getattr(model, "vision_model", model)
    config, side = tower.config, None
    known: dict[str, Any] = {"forward": _call_transformers}
    if config.model_type == "vit_mae":
        config.mask_ratio, known["forward"] = 0.0, _call_mae
    elif config.model_type.startswith("siglip2"):
        side = config.patch_size * math.isqrt(config.num_patches)
        known = {"forward": _call_siglip2, "patch_size": config.patch_size, "input_size": side}
    return LibraryModel(tower, known | (_arguments_of_processor(processor, side) if processor is not None else {}))


def _call_transformers(model: Any, images: Tensor) -> Any:
    """At other sizes than its own, with positions interpolated, where it can."""
    own = getattr(model.config, "image_size", None)
    interpolates = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    is_own = own in (images.shape[-1], tuple(images.shape[-2:]), list(images.shape[-2:]))
    return model(pixel_values=images, **({"interpolate_pos_encoding": True} if interpolates and not is_own else {}))


def _call_mae(model: Any, images: Tensor) -> Any:
    """Without masking; noise that grows keeps patches in their order."""
    n_patches = model.embeddings.patch_embeddings.num_patches
    noise = torch.arange(float(n_patches), device=images.device).expand(len(images), -1)
    return model(pixel_values=images, noise=noise)


def _call_siglip2(model: Any, images: Tensor) -> Any:
    """Images of one size as it takes them: pixels of each patch in a row, and the rows and columns of patches."""
    side = model.config.patch_size
    rows, columns = images.shape[-2] // side, images.shape[-1] // side
    patches = (
        images.unfold(2, side, side).unfold(3, side, side).permute(0, 2, 3, 4, 5, 1).reshape(len(images), rows * columns, -1)
    )
    shapes = torch.tensor([[rows, columns]], device=images.device).expand(len(images), -1)
    mask = torch.ones(len(images), rows * columns, dtype=torch.long, device=images.device)
    return model(pixel_values=patches, pixel_attention_mask=mask, spatial_shapes=shapes)


def _arguments_of_processor(processor: Any, of_model: int | None = None) -> dict[str, Any]:
    """Arguments of `wrap` as an image processor has them; `of_model`: side of images in pixels, where the model decides."""
    size = {"height": of_model, "width": of_model} if of_model else dict(processor.size or {})
    crop = dict(getattr(processor, "crop_size", None) or {}) if getattr(processor, "do_center_crop", False) else {}
    side = size.get("shortest_edge") or size.get("height")
    sees = crop or {"height": side, "width": size.get("width", side)}
    is_normalised = getattr(processor, "do_normalize", True)
    known: dict[str, Any] = {
        "input_size": (sees["height"], sees["width"]),
        "crop_mode": "center" if "shortest_edge" in size else "squash",
        "mean": tuple(processor.image_mean) if is_normalised else (0.0, 0.0, 0.0),
        "std": tuple(processor.image_std) if is_normalised else (1.0, 1.0, 1.0),
    }
    if side:
        known["crop_pct"] = min(1.0, sees["height"] / side)
    if (resampling := RESAMPLING.get(int(getattr(processor, "resample", None) or 3))) is not None:
        known["interpolation"] = resampling
    return known


def _load_torchvision(name: str, seed: int | None) -> LibraryModel:
    """A ViT of torchvision, and what the transform of its default weights does."""
    from torchvision import models

    if seed is not None:
        return LibraryModel(models.get_model(name, weights=None))
    weights = models.get_model_weights(name).DEFAULT
    preset = weights.transforms()
    known = {
        "input_size": preset.crop_size[0],
        "crop_pct": preset.crop_size[0] / preset.resize_size[0],
        "mean": tuple(preset.mean),
        "std": tuple(preset.std),
        "interpolation": preset.interpolation.value,
    }
    return LibraryModel(models.get_model(name, weights=weights), known)


def _load_open_clip(name: str, seed: int | None) -> LibraryModel:
    """The image tower of ARCHITECTURE/WEIGHTS, or of a name on a hub, and what its preprocessing does."""
    import open_clip

    architecture, _, weights = (name, "", "") if name.startswith(OF_HUBS) else name.partition("/")
    model = open_clip.create_model(architecture, pretrained=weights or None if seed is None else None)
    size, preset = model.visual.image_size, open_clip.get_model_preprocess_cfg(model)
    known = {
        "input_size": size if isinstance(size, int) else size[0],
        "crop_pct": 1.0,
        "crop_mode": "squash" if preset.get("resize_mode") == "squash" else "center",
        "mean": tuple(preset["mean"]),
        "std": tuple(preset["std"]),
        "interpolation": preset["interpolation"],
    }
    return LibraryModel(model.visual, known)


LIBRARIES: Mapping[str, Callable[[str, int | None], LibraryModel]] = {
    "transformers": _load_transformers,
    "torchvision": _load_torchvision,
    "open_clip": _load_open_clip,
}
