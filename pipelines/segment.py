"""`beyondcls segment`: semantic segmentation from cached patch tokens, without encoder or images."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters.dense import options_of_task
from pipelines.parameters.engine import without
from pipelines.parameters.options import select_options, takes_options
from pipelines.parameters.segmentation import OF_SEGMENTATION
from pipelines.parameters.training import LOGGING
from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features
from store import BeyondClsError
from store.errors import unknown

if TYPE_CHECKING:
    from probe.segmentation.run import Protocols

OF_SETS = ("block", "final_norm", "held_out", "placement")
FOLDERS = ("linear", "logistic", "maps")


@takes_options(OF_SEGMENTATION, LOGGING)
def main(
    features: Annotated[
        str, typer.Option(help="feature set of the training images, with label maps: folder, receipt, address")
    ],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[Path, typer.Option(help="folder for metrics.json, tables, trained heads and label maps")],
    params: Annotated[
        Path | None, typer.Option(help="take dense.segment.DATASET and store from this file; options given here win")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="of dense.segment in --params: take its options")] = None,
    encoder: Annotated[str | None, typer.Option(help="take `block` of encoders.NAME in --params, too")] = None,
    val: Annotated[
        str | None, typer.Option(help="feature set to select settings on  [default: a share of the training images]")
    ] = None,
    probes: Annotated[
        Path | None,
        typer.Option(help="PROBES/ENCODER: heads whose weights are compared with the foreground of the test images"),
    ] = None,
    head: Annotated[list[str] | None, typer.Option(help="a folder in --probes; may be repeated  [default: all]")] = None,
    foreground: Annotated[
        str | None,
        typer.Option(help="classes that are foreground, with commas; compares attention maps and --probes with them"),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="processes that decode label maps of the linear head, in addition to this one")
    ] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    **given: Any,
) -> None:
    """Classify patches by k-NN, logistic regression and a linear head, and compare with label maps: mIoU.

    Settings are selected on held-out training images or on --val, by mIoU on the grid of patches; test images select nothing.
    Baselines that see no image are reported, too: the most frequent class, and classes drawn by their share.

    miou_grid compares patch labels with patch labels, miou_original pixels of the original images, miou_512 those of the view's
    frame at 512 pixels; values at different resolutions don't compare. Void is ignored; classes that neither truth nor
    predictions have do not count.

    Writes metrics.json (means) and description.json (all else); per_class.csv; confusion.csv; linear/seed0.safetensors, … and
    logistic/seed0.safetensors, which `beyondcls.online` loads; curves.csv; and with --save-maps maps/PROTOCOL/ID.png and
    maps/truth/ID.png, in which a value is a class and 255 is void or what the view does not show. A run that was killed goes on
    when the same command is given again.
    """
    from pipelines.localise import score_maps
    from pipelines.process.device import choose_device
    from pipelines.process.epoch_logs import epoch_logs
    from pipelines.process.progress import progress_bar
    from probe.checkpoint import Unfinished
    from probe.localisation.foreground import class_names, foreground_of, measure_foreground
    from probe.result_files import result_folder
    from probe.run import shown_views
    from probe.segmentation.linear import NAME
    from probe.segmentation.results import files_in, write
    from probe.segmentation.run import segment
    from probe.segmentation.saved_maps import SavedMaps
    from probe.segmentation.sets import Sets
    from store.places.disk import check_writable

    logs = given.pop("log", [])
    options = options_of_task(params, "segment", OF_SEGMENTATION, dataset, encoder, given)
    resolutions = [_resolution(text) for text in options.get("at") or ["original"]]
    learn, judge = open_features(features, params), open_features(test, params)
    validation = None if val is None else open_features(val, params)
    results = result_folder(out, judge.attributes["encoder"], lambda: files_in(out))
    protocols = settings(options, min(learn.spec.transform["input_size"][1:]))
    sets = Sets(
        learn,
        judge,
        validation,
        # Random crops alone where there are any, or all windows.
        views=shown_views(learn, options.get("views"), learn.spec.has_windows),
        workers=workers,
        device=choose_device(device),
        **{"share" if name == "held_out" else name: options[name] for name in OF_SETS if name in options},
    )
    check_writable(out)
    about: dict[str, Any] = {"command": recorded_command(without(sys.argv[1:], ["--log"]))}
    if foreground is not None or probes is not None:  # first, so that errors are raised before anything trains
        names = class_names(foreground)
        truth = foreground_of(judge, names)
        kinds = score_maps(judge, truth.rows, probes, head, 0)
        about["foreground"] = {"classes": names, "maps": [measure_foreground(kind, truth) for kind in kinds]}
    unfinished = Unfinished.beside(out)
    described = {"encoder": learn.attributes["encoder"], **asdict(protocols.linear)}
    with results.written() as folder, epoch_logs(logs, {NAME: (out, described)}) as on_epoch:
        maps = SavedMaps(folder / "maps", sets.tested, sets.classes, resolutions[0], options.get("save_maps", 0))
        keep = maps.keep if maps.rows else None
        calls: dict[str, Any] = {"bars": progress_bar, "say": typer.echo, "on_epoch": on_epoch, "keep": keep}
        result = segment(sets, protocols, resolutions, unfinished=unfinished, **calls)
        measures = write(folder, sets, protocols, result, about)
        for name in FOLDERS:  # also those with nothing in them, as the stage of dvc.yaml has them among its outs
            (folder / name).mkdir(exist_ok=True)
    unfinished.remove()
    report(out, measures)


def settings(options: Mapping[str, Any], frame: int) -> "Protocols":
    """What is run, and the grid of each protocol: the defaults, with the options that were given.

    Args:
        frame: shorter side of the view's frame, pixels.

    Raises:
        BeyondClsError: an unknown protocol, or a value out of its range.
    """
    from dataclasses import replace

    from probe.segmentation.logistic import PatchLogistic
    from probe.segmentation.neighbours import PatchNeighbours
    from probe.segmentation.run import LINEAR, PROTOCOLS, Protocols

    for name in options.get("protocol") or ():
        if name not in PROTOCOLS:
            raise BeyondClsError(unknown("protocol", name, PROTOCOLS))

    def several(**names: str) -> dict[str, Any]:
        return {field: tuple(options[name]) for field, name in names.items() if options.get(name)}

    scaled = select_options(options, ("standardise",))
    plan = replace(LINEAR, weight_decays=(LINEAR.recipe.weight_decay,))
    plan = replace(plan, **several(seeds="seeds", base_lrs="base_lrs", weight_decays="weight_decays"))
    base_lr, weight_decay = plan.settings[0]
    epochs = options.get("epochs", LINEAR.recipe.epochs)
    recipe = replace(
        LINEAR.recipe,
        epochs=epochs,
        warmup_epochs=min(LINEAR.recipe.warmup_epochs, epochs - 1),
        base_lr=base_lr,
        weight_decay=weight_decay,
        **select_options(options, ("batch_size",)),
    )
    return Protocols(
        tuple(options.get("protocol") or PROTOCOLS),
        PatchNeighbours(**several(ks="ks", metrics="metric"), **scaled),
        PatchLogistic(**several(cs="cs"), **scaled, **select_options(options, ("max_passes",))),
        replace(plan, recipe=recipe),
        options.get("loss_size") or frame,
    )


def report(out: Path, measures: dict[str, Any]) -> None:
    """Print results and notes."""
    for name, content in measures["protocols"].items():
        values = [f"{m} {v['mean']:5.1f} %" for m, v in content.items() if m.startswith("miou")]
        accuracy = next(v["mean"] for m, v in content.items() if m.startswith("accuracy"))
        typer.echo(f"{name:20} {'   '.join(values)}   pixel accuracy {accuracy:5.1f} %")
        for note in content["notes"]:
            typer.echo(f"  note: {note}")
    for entry in measures.get("foreground", {}).get("maps", ()):
        share, area = entry["share"]["mean"], entry["chance"]
        typer.echo(
            f"{entry['source']:9} {entry['name']:16} {share:5.1f} % of its weight on the foreground, {area:.1f} % of the area"
        )
    for note in measures["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(f"{out / 'metrics.json'}: {measures['n_test']:,} test images")


def _resolution(text: str) -> str | int:
    if text == "original":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise BeyondClsError(f"--at is {text!r}, expected original or a number of pixels such as 512")
    return int(text)
