"""What a pickle may do to whoever opens it."""

import os
from pathlib import Path
from typing import Any


class Payload:
    """Makes a folder when it is unpickled by someone careless."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)
