"""Small images, and tars and folders of them, as users have them."""

from collections.abc import Iterable
from pathlib import Path

import webdataset

from beyondcls.testing.datasets import picture, write_example
from tests.extract.datasets import examples  # noqa: F401


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


def change(file: Path, old: str | None, new: str | bytes | None) -> None:
    """Put something in place of a part of a file, or of all of it; None removes it."""
    assert old is None or old in file.read_text()
    content = new if old is None else file.read_text().replace(old, str(new))
    file.unlink() if content is None else write_file(file, content if isinstance(content, bytes) else content.encode())


def write_pictures(folder: Path, *names: str, form: str = "jpeg") -> Path:
    """Images of these names."""
    for seed, name in enumerate(names):
        write_file(folder / name, picture(seed, form))
    return folder


__all__ = ["change", "picture", "samples", "write_example", "write_file", "write_pictures", "write_tar", "write_text"]
