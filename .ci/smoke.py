"""An installation at work: every public name, and images to a report, in an empty folder and without network.

    PYTHON .ci/smoke.py

The interpreter is that of the environment to try, which has the extras `extract` and `probe`. Ends with the first error.
"""

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from PIL import Image

import beyondcls
from beyondcls.testing import check_aggregator

SETS = ("--features", "features/train", "--test", "features/val")


def beyondcls_command(folder: Path, *arguments: str) -> str:
    """Output of a command that must succeed, as a user would run it."""
    command = [str(Path(sys.executable).with_name("beyondcls")), *arguments]
    print("$ beyondcls", *arguments, flush=True)
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if shown.returncode:
        sys.exit(shown.stdout + shown.stderr)
    return shown.stdout


def write_photographs(folder: Path) -> None:
    """Dark and bright noise, a folder per class, 24 images to train on and 8 to validate."""
    generator = np.random.default_rng(0)
    for split, n in (("train", 12), ("val", 4)):
        for label, brightness in (("dark", 60), ("bright", 180)):
            (folder / split / label).mkdir(parents=True)
            for i in range(n):
                pixels = generator.normal(brightness, 20, (32, 32, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{i}.png")


def main() -> None:
    if "site-packages" not in Path(beyondcls.__file__).parts:
        sys.exit(f"beyondcls comes from {beyondcls.__file__}, expected site-packages; install the wheel, not the tree")
    for name in beyondcls.__all__:
        getattr(beyondcls, name)
    assert beyondcls.__version__ == version("beyondcls")
    check_aggregator("abmilp")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_photographs(folder / "photos")
        assert "extract" in beyondcls_command(folder, "--help")
        for split in ("train", "val"):
            images = ("--data", f"photos/{split}", "--out", f"features/{split}")
            beyondcls_command(folder, "extract", "--encoder", "quickstart-random", *images)
        heads = ("--head", "cls", "--head", "abmilp", "--epochs", "2", "--warmup-epochs", "0")
        shown = beyondcls_command(folder, "probe", *SETS, "--out", "probes/random", *heads)
        assert "top-1" in shown, shown
        beyondcls_command(folder, "report", "--probes", "probes", "--out", "report")
        page = (folder / "report/index.html").read_text(encoding="utf-8")
        assert "<style>" in page, "the page has no style sheet"
        assert "abmilp" in page.lower()
    print(f"beyondcls {beyondcls.__version__} works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
