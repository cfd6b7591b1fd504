"""A digest of the code that stages run.

    python -m pipelines.code code-extract --out code/extract.json

The stages `code-…` of dvc.yaml depend on the files that other stages import, and those depend on what is written here. So
dvc.lock, which DVC rewrites after each stage, names a file once, and not for every encoder, data set and head.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from store import BeyondClsError


def main(
    stage: Annotated[str, typer.Argument(help="of dvc.yaml; its dependencies are the code")],
    out: Annotated[Path, typer.Option(help="file to write")],
) -> None:
    """Write the SHA-256 of each file that a stage depends on, as JSON.

    Raises: BeyondClsError: there is no such stage.
    """
    stages = yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]
    if stage not in stages:
        raise BeyondClsError(f"dvc.yaml has no stage {stage!r}, expected one of {', '.join(stages)}")
    digests = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in stages[stage]["deps"]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
