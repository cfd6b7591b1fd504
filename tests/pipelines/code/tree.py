"""Small trees of source to follow imports in."""

from collections.abc import Mapping
from pathlib import Path

from pipelines.code.closure import Project
from pipelines.code.registries import Used

ENCODERS = ("extract.encoders", "ENCODERS")
# A program, a registry of three families in it, and what they share.
TREE = {
    "pipelines/__init__.py": "",
    "pipelines/run.py": "import json\n\nfrom extract.encoders import load\n\nprint(load(json.loads('1')))\n",
    "extract/__init__.py": "",
    "extract/encoders/__init__.py": (
        '"""Encoders."""\n\n'
        "from extract.encoders import dino, mae\n"
        "from extract.encoders.simmim import SimMIM\n"
        "from store import digest\n\n"
        "ENCODERS: dict[str, object] = {\n    **mae.ENCODERS,\n    **dino.ENCODERS,\n    'simmim': SimMIM,\n}\n\n\n"
        "def load(name):\n    return digest(ENCODERS[name])\n\n\n"
        "__all__ = ['ENCODERS', 'SimMIM', 'load']\n"
    ),
    "extract/encoders/mae.py": "from extract.encoders.shared import norm\n\nENCODERS = {'mae-b16': norm(1), 'mae-l': 2}\n",
    "extract/encoders/dino.py": "from extract.encoders.shared import norm\n\nENCODERS = {'dino-b16': norm(3)}\n",
    "extract/encoders/simmim.py": "class SimMIM:\n    pass\n",
    "extract/encoders/shared.py": "def norm(x):\n    return x\n",
    "store/__init__.py": "def digest(x):\n    return x\n",
}
CORE = {"extract/__init__.py", "extract/encoders/__init__.py", "pipelines/__init__.py", "pipelines/run.py", "store/__init__.py"}


def laid(folder: Path, tree: Mapping[str, str] = TREE) -> Path:
    for name, text in tree.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def digests(folder: Path, *modules: str, used: Used | None = None) -> dict[str, str | None]:
    return Project(folder).digests(modules or ("pipelines.run",), used or {})


def using(*names: str) -> Used:
    return {ENCODERS: names}
