"""Published weights, fetched once and kept beside those that torch.hub keeps."""

import hashlib
from pathlib import Path
from urllib.error import URLError

import torch

from store import BeyondClsError


def download(url: str, digest: str | None = None) -> Path:
    """The file at `url`, fetched unless it is there already; under `torch.hub.get_dir()` (TORCH_HOME moves it).

    Args:
        digest: SHA-256 that it must have, hexadecimal.

    Raises:
        BeyondClsError: it cannot be fetched, or has another digest.
    """
    # Many publish a `checkpoint.pth`: the address keeps them apart.
    folder = Path(torch.hub.get_dir()) / "checkpoints" / f"beyondcls-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    file = folder / url.rsplit("/", 1)[-1]
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, str(file), hash_prefix=digest)  # to a temporary name; renamed when it is whole
    except (URLError, OSError, RuntimeError, ValueError) as error:
        raise BeyondClsError(
            f"{url} cannot be fetched ({error}); check the connection, or fetch it elsewhere and give --checkpoint FILE"
        ) from error
    return file
