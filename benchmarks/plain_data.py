"""Images, a frozen encoder, and caches of its tokens, as people have them in plain PyTorch."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import timm
import torch
from safetensors.torch import load_file
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.study import SPLITS, SharedOrder, Study
from benchmarks.timing import ROOT
from extract.encoders.quickstart import ARCHITECTURE, CIFAR10, WEIGHTS
from extract.transform import TRANSFORM


def plain_encoder(name: str) -> Any:
    """The frozen ViT without its last norm: as in the paper's code, heads read tokens before it."""
    torch.manual_seed(0)
    model: Any
    if name.startswith("quickstart-"):
        model = timm.create_model("vit_tiny_patch16_224", **dict[str, Any](ARCHITECTURE, num_classes=0))
        model.load_state_dict(load_file(ROOT / WEIGHTS / f"{name.removeprefix('quickstart-')}.safetensors"))
    else:
        model = timm.create_model(name, num_classes=0)
    model.norm = nn.Identity()
    return model.eval().requires_grad_(False)


def input_of(study: Study, model: Any) -> dict[str, Any]:
    """What the encoder sees of an image, in timm's names."""
    known = resolve_model_data_config(model) | {"input_size": (3, *model.patch_embed.img_size)}
    return {name: value for name, value in (known | (CIFAR10 if study.is_trained else {})).items() if name in TRANSFORM}


def random_crops(seen: Mapping[str, Any]) -> Any:
    """The augmentation of MAE's linear probing."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(seen["input_size"][-1], interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(seen["mean"], seen["std"]),
        ]
    )


class Images:
    """Batches of tokens that the encoder computes anew each time.

    Args:
        shuffled: the batches that the program takes; else images come in their order.
        crops: random crops in an order of their own, as in MAE's linear probing; a batch that is not whole is dropped.
    """

    def __init__(self, study: Study, model: Any, split: str, *, shuffled: bool = False, crops: bool = False):
        seen = input_of(study, model)
        images = ImageFolder(str(Path(study.images, split)), random_crops(seen) if crops else create_transform(**seen))
        self.n_images, self.n_classes, self.dim, self._model = len(images), len(images.classes), model.embed_dim, model
        if crops:
            self._loader = loader(images, study, batch_size=study.batch_size, shuffle=True, drop_last=True)
        elif shuffled:
            row_nbytes = 2 * model.patch_embed.num_patches * model.embed_dim  # of float16
            self._loader = loader(images, study, batch_sampler=SharedOrder(len(images), study.batch_size, row_nbytes))
        else:
            self._loader = loader(images, study, batch_size=study.batch_size)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for pixels, labels in self._loader:
            with torch.no_grad():
                tokens = self._model.forward_features(pixels)
            yield {"cls": tokens[:, 0], "patch": tokens[:, 1:]}, labels


class Cache:
    """Batches of tokens from an HDF5 file; `shuffled` as for `Images`."""

    def __init__(self, study: Study, file: Path, split: str, kinds: Iterable[str], *, shuffled: bool = False):
        rows = CachedTokens(file, split, tuple(kinds))
        self.n_classes, self.dim = int(rows.labels.max()) + 1, rows.dim
        if shuffled:
            order = SharedOrder(len(rows), study.batch_size, rows.patch_nbytes)
            self._loader = loader(rows, study, batch_sampler=order)
        else:
            self._loader = loader(rows, study, batch_size=study.batch_size)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for tokens, labels in self._loader:
            yield {kind: values.float() for kind, values in tokens.items()}, labels


class CachedTokens(Dataset):
    """Tokens of one image; each process opens the file by itself."""

    def __init__(self, file: Path, split: str, kinds: tuple[str, ...]):
        self._file, self._split, self._kinds = file, split, kinds
        self._opened: Any = None
        with h5py.File(file) as opened:
            self.labels = torch.from_numpy(opened[split]["label"][:])
            patch = opened[split]["patch"]
            self.patch_nbytes, self.dim = patch[:1].nbytes, patch.shape[-1]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[dict[str, Tensor], Tensor]:
        if self._opened is None:
            self._opened = h5py.File(self._file)[self._split]
        return {kind: torch.from_numpy(self._opened[kind][row]) for kind in self._kinds}, self.labels[row]


def loader(data: Any, study: Study, **options: Any) -> DataLoader:
    """A DataLoader whose workers live as long as it does."""
    return DataLoader(data, num_workers=study.workers, persistent_workers=study.workers > 0, **options)


def write_npy(study: Study, folder: Path) -> None:
    """[cls] and the average patch of each image."""
    model = plain_encoder(study.encoder)
    for split in SPLITS:
        parts = [(x["cls"], x["patch"].mean(1), y) for x, y in Images(study, model, split)]
        for name, values in zip(("cls", "average", "label"), zip(*parts, strict=True), strict=True):
            np.save(folder / f"{split}-{name}.npy", torch.cat(values).numpy())


def write_h5(study: Study, folder: Path) -> None:
    """[cls] and all patch tokens in float16, a chunk for each image: h5py's fastest layout for shuffled rows."""
    model = plain_encoder(study.encoder)
    with h5py.File(folder / "features.h5", "w") as file:
        for split in SPLITS:
            batches, begin = Images(study, model, split), 0
            group, n = file.create_group(split), batches.n_images
            for tokens, labels in batches:
                parts = {kind: values.half().numpy() for kind, values in tokens.items()} | {"label": labels.numpy()}
                for kind, values in parts.items():
                    if kind not in group:
                        chunks = (1, *values.shape[1:]) if kind == "patch" else None
                        group.create_dataset(kind, (n, *values.shape[1:]), values.dtype, chunks=chunks)
                    group[kind][begin : begin + len(values)] = values
                begin += len(labels)
