"""What an extraction depends on of a data set: digests of its images, and of the reader of their form.

Images are looked at here alone, and read once (`extract.datasets.index`): DVC would go through a folder of a million files
for each stage that depends on it.

    python -m pipelines.code.reader --dataset cifar10 --out code/data/cifar10.json

Without the images this cannot run, and need not: the stage depends on the images and on the digests of readers, which an edit
of other code leaves unchanged.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

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
    """Write digests of the readers of a data set, {FORM: {FILE: DIGEST}}, and of its images, by split.

    Raises:
        BeyondClsError: there are no such images, or they look like two data sets.
    """
    from extract.datasets import DataError, form_of, open_images
    from pipelines.parameters.datasets import images_of, is_missing
    from pipelines.parameters.params import read_params
    from pipelines.process.progress import progress_bar
    from store.user_code import file_of

    splits = {split: images_of(read_params(params), dataset, split) for split in ("train", "test")}
    data = str(splits["train"]["data"])
    if is_missing(data):
        raise BeyondClsError(f"there is no {data!r}, expected a data set; run this where its images are, and `dvc push`")
    forms = sorted({images.get("form") or form_of(data, images["split"]) for images in splits.values()})
    digests = {form: json.loads((readers / f"{form}.json").read_text(encoding="utf-8")) for form in forms}
    if "function" in forms:  # with the code that it can import of this project
        digests["function"] |= Project(Path().resolve()).digests([file_of(data) or data.rpartition(":")[0]], {})
    described: dict[str, dict[str, Any]] = {}  # by split, all of the images that an extraction depends on
    for split, options in splits.items():
        source, classes = options.pop("data"), options.pop("classes", None)
        options |= {"classes": None if classes is None else Path(classes), "allow_left_out": True}
        try:
            images = open_images(source, bars=progress_bar, **options)
            truths = {name: images.truth_columns(name).digest(images.truths[name].classes) for name in sorted(images.truths)}
            about = {"images": len(images), "digest": images.digest, "classes": images.classes and list(images.classes)}
            about |= {"problems": len(images.all_problems()), "lost": images.left_out.n_lost, "truths": truths}
            described[split] = about
        except DataError:  # which the extraction will say
            described[split] = {"problem": "they cannot be opened"}
    write_file(out, [(json.dumps({"readers": digests, "images": described}, indent=1) + "\n").encode()])


if __name__ == "__main__":
    try:
        typer.run(main)
    except BeyondClsError as error:
        sys.exit(f"error: {error}")
