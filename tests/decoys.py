"""What a pipeline leaves in a folder, as junk that fails whoever reads it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
# Folders that `make clean` removes.
OUTPUTS = tuple(re.findall(r"\nclean:.*\n\trm -rf (.*)", MAKEFILE)[0].split())
FILES = ("metrics.json", "description.json", "summary.json", "localisation.json", "divergence.csv", "statistics.csv")
FILES += ("index.html", "zarr.json")
JUNK = "a decoy, which no test may read"


def lay_decoys(folder: Path) -> None:
    """Junk in every place below `folder` where a stage writes, down to GROUP/ENCODER/HEAD, and as dvc.lock."""
    for output in OUTPUTS:
        for place in (output, f"{output}/decoy", f"{output}/poolings/decoy", f"{output}/poolings/decoy/cls"):
            (folder / place).mkdir(parents=True)
            for name in FILES:
                (folder / place / name).write_text(JUNK)
    (folder / "dvc.lock").write_text(JUNK)
