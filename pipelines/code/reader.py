"""The digest of the reader of a data set, whose form is recognised from its images.

    python -m pipelines.code.reader --dataset cifar10 --out code/data/cifar10.json

Without the images this cannot run, and need not: it depends on the images and on the digests of readers, which an edit of
other code leaves unchanged.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipelines.code.closure import Project
from store import BeyondClsError
from store.places.disk import write_file


def main(
    dataset: Annotated[str, typer.Option(help="a data set of the parameter file")],
    out: Annotated[Path, typer.Option(help="file to write")],
    params: Annotated[Path, typer.Option(help="the parameter file")] = Path("params.yaml"),
    readers: Annotated[Path, typer.Option(help="folder with FORM.json, as `python -m pipelines.code` writes it")] = Path(
        "code/readers"
    ),
) -> None:
    """Write the digests of the readers of a data set, by form: {FORM: {FILE: DIGEST}}.

    Raises:
        BeyondClsError: there are no such images, or they look like two data sets.
    """
    from extract.datasets import form_of
    from pipelines.parameters.images import images_of, is_missing
    from pipelines.parameters.params import read_params
    from store.user_code import file_of

    splits = [images_of(read_params(params), dataset, split) for split in ("train", "test")]
    data = str(splits[0]["data"])
    if is_missing(data):
        raise BeyondClsError(
            f"there is no {data!r}, expected a data set, whose images show which reader it needs; "
            "run this on a machine that has them, and `dvc push`"
        )
    forms = sorted({images.get("form") or form_of(data, images["split"]) for images in splits})
    digests = {form: json.loads((readers / f"{form}.json").read_text(encoding="utf-8")) for form in forms}
    if "function" in forms:  # with the code that it can import of this project
        digests["function"] |= Project(Path().resolve()).digests([file_of(data) or data.rpartition(":")[0]], {})
    write_file(out, [(json.dumps(digests, indent=1) + "\n").encode()])


if __name__ == "__main__":
    try:
        typer.run(main)
    except BeyondClsError as error:
        sys.exit(f"error: {error}")
