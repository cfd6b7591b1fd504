"""`beyondcls report`: tables, figures and one page from what the other stages wrote."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters.options import Option, select_options, takes_options
from pipelines.report.kinds import KINDS, pattern_of

WIDTH = 24  # characters of a column, at most, if the output is not a terminal
# What a folder that is named has to hold, or another one was meant.
HOLDS = {
    "attention": "ENCODER/summary.json",
    "divergence": "ENCODER/divergence.csv",
    **{kind: holds for kind, (holds, _) in KINDS.items() if kind not in ("probes", "studies")},
}
# Fields of Folders, of the project's or of those that are named.
FOLDERS = {
    **{name: Option(Path, f"folder that holds {file}") for name, file in HOLDS.items()},
    "datasets": Option(
        list[str],
        "folder that holds DATA/ENCODER/HEAD/metrics.json: probes on several data sets to compare; repeat it for more",
    ),
    "studies": Option(list[str], "folder that holds STUDY/ENCODER/HEAD/metrics.json; repeat it for more"),
    "receipts": Option(Path, "folder of receipts, whose digests tables/results.csv has"),
    "data": Option(str, "the test images, for the overlays"),
    "split": Option(str, "of these, as `beyondcls extract --split` takes it"),
    "form": Option(str, "of these, where it is not seen from them: tars, folder, csv, imagenet, …"),
    "classes": Option(Path, "of these: file of class names, one a line"),
    "localised": Option(str, "the images that were localised, to draw boxes over", "those of --data"),
    "localised_split": Option(str, "of these"),
}


@takes_options(FOLDERS)
def main(
    dataset: Annotated[
        str | None,
        typer.Option(
            help="data set of the project that the report is about, the first of `datasets` in params.yaml; with --probes, of "
            "which data set those are, by default as their folder is called"
        ),
    ] = None,
    probes: Annotated[
        Path | None,
        typer.Option(
            help="folder that holds ENCODER/HEAD/metrics.json, in place of the project's; then name all that it shows"
        ),
    ] = None,
    dense_data: Annotated[
        str | None,
        typer.Option(help="folder that holds the images of data sets of --segmentation and --detection, by their names"),
    ] = None,
    dense_split: Annotated[str | None, typer.Option(help="of these")] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="published results to put next to these: paper, efficient-probing, one of the paper's tables "
            "(paper-table-1, -5, -6, -7), or a .csv file with the columns encoder, "
            "dataset, head, protocol, metric, value, source, note; repeat it for more"
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="a section of the page, such as accuracy or statistics, or a study; repeat it for more; all if not given"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for index.html, tables and figures  [default: report; with --live, report/live]")
    ] = None,
    n_examples: Annotated[int, typer.Option(min=0, help="images with overlays")] = 6,
    encoder: Annotated[list[str] | None, typer.Option(help="show this encoder; repeat it for more; all if not given")] = None,
    image: Annotated[list[str] | None, typer.Option(help="id of an image with overlays; repeat it for more")] = None,
    draw: Annotated[int | None, typer.Option(help="seed: draw the images with overlays at random")] = None,
    score: Annotated[float, typer.Option(min=0, max=1, help="least score of detections that are drawn")] = 0.5,
    open_: Annotated[bool, typer.Option("--open", help="open the page in the browser, once it is written")] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="write the page again whenever results change, as while `dvc repro` runs, and let it load itself again in the "
            "browser; Ctrl-C ends this, with exit status 0",
        ),
    ] = False,
    **given: Any,
) -> None:
    """Write a self-contained page: accuracies, attention statistics, and where the aggregators look.

    Of the project in this folder: probes/DATASET, attention/DATASET, blocks/DATASET, geometry/DATASET, similarity/DATASET,
    norms/DATASET, few_shot/DATASET, studies, scores, correspondence, retrieval, tracking, divergence, localisation,
    segmentation, depth, detection, and the images that params.yaml names. With --probes, of the folders and images that are
    named and of nothing else; so with --only and --attention, --localisation, --segmentation, --depth or --detection, which
    need no probes.

    Writes index.html, metrics.json, tables (.csv, .tex, .md; results.csv with a row for every head) and figures (.svg, .png,
    .pdf), and prints the accuracies.
    """
    from pipelines.parameters.params import without_none
    from pipelines.process.terminal import SafeConsole
    from pipelines.report.collect import Examples, Folders, Inputs, collect, subset
    from pipelines.report.files import place_of, write
    from pipelines.report.formats.terminal_table import to_terminal
    from pipelines.report.live import keep_written, open_page
    from pipelines.report.project import PARAMS, named_by, project
    from pipelines.report.published.row import published_rows
    from pipelines.report.reading import files_in
    from pipelines.report.sections import sections
    from pipelines.report.sections.accuracy import scores as accuracies
    from pipelines.report.sections.against import in_words
    from store import BeyondClsError

    if image and draw is not None:
        raise BeyondClsError(
            f"--image {image[0]} and --draw {draw} both choose the images, expected one of them; drop the other"
        )
    published, out = published_rows(against or ()), out or Path("report", *(["live"] if live else []))
    named = {name: tuple(map(Path, value)) if isinstance(value, list) else value for name, value in given.items()}
    if "data" in named:
        named = {"images": named.pop("data"), "split": None, "form": None, "classes": None} | named
    if "localised" in named:
        named = {"localised_split": None} | named
    examples = Examples(n_examples, tuple(image or ()), draw, score)

    def read_folders() -> Folders:
        """As they are named, or as the project has them by now."""
        if probes is None and only and replace(Folders(), **named).need_no_probes:
            folders = Folders()  # and what is named, which these sections need
        else:
            folders = project(Path(), dataset) if probes is None else Folders(probes, dataset=dataset or named_by(probes))
        images = replace(folders.dense_images, **without_none(data=dense_data, split=dense_split))
        return replace(folders, **named, dense_images=images)

    def read() -> Inputs:
        inputs = replace(collect(read_folders(), examples), against=published)
        return subset(inputs, encoder) if encoder else inputs

    if live:
        places = [Path("probes"), Path(PARAMS)] if probes is None else [probes]
        keep_written(out, read, lambda inputs: sections(inputs, only or ()), places, typer.echo, open_)
        return
    place = place_of(out)
    inputs = read()
    for name, folder in select_options(given, HOLDS).items():
        has_others = folder.is_dir() and {file.name for file in folder.iterdir()} - {"README.md"}
        if has_others and not files_in(folder, pattern_of(HOLDS[name])):
            raise BeyondClsError(f"there is no {HOLDS[name]} in --{name} {folder}; name the folder above those")
    write(place, inputs, sections(inputs, only or ()))
    table = accuracies(inputs)
    if inputs.probes:
        SafeConsole(width=None if sys.stdout.isatty() else max(160, WIDTH * len(table.columns))).print(to_terminal(table))
    for line in in_words(inputs):
        typer.echo(line)
    typer.echo(f"report: {out / 'index.html'}")
    if open_:
        open_page(out / "index.html")
