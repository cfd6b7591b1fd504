"""Small images, and tars and folders of them, as users have them."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image

from extract.datasets import DATASETS


def picture(seed: int, form: str = "png", width: int = 36, height: int = 40) -> bytes:
    """An encoded image of smooth noise."""
    noise = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, form)
    return file.getvalue()


def samples(n: int, first: int = 0, n_classes: int = 3) -> list[dict[str, object]]:
    """Samples as webdataset writes them: ids 0000, 0001, …, labels in turn."""
    return [{"__key__": f"{i:04d}", "png": picture(i), "cls": i % n_classes} for i in range(first, first + n)]


def write_tar(path: Path, content: Iterable[dict[str, object]]) -> Path:
    """A tar by webdataset itself. Values of bytes are stored as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path), encoder=False) as tar:
        for sample in content:
            tar.write({k: v if isinstance(v, bytes) or k == "__key__" else str(v).encode() for k, v in sample.items()})
    return path


def write_file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_text(path: Path, *lines: str) -> Path:
    """A text of lines."""
    return write_file(path, "".join(f"{line}\n" for line in lines).encode())


def write_pictures(folder: Path, *names: str, form: str = "jpeg") -> Path:
    """Images of these names."""
    for seed, name in enumerate(names):
        write_file(folder / name, picture(seed, form))
    return folder


def write_example(folder: Path, form: str) -> str:
    """The tiny copy that a form of data set brings; what a user would name."""
    example = DATASETS[form].example
    for seed, (name, content) in enumerate(example.files.items()):
        if content is None:
            content = picture(seed, "png" if name.endswith("png") else "jpeg")
        elif not isinstance(content, str | bytes):
            content = content()
        write_file(folder / name, content.encode() if isinstance(content, str) else content)
    return str(folder / example.source)
