"""`beyondcls segment`: semantic segmentation from cached patch tokens, without encoder or images."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.parameters.params import integers, numbers
from pipelines.sharing.places import open_features

if TYPE_CHECKING:
    from probe.segmentation.run import Protocols
    from probe.segmentation.sets import Sets
    from store import FeatureStore


def main(
    features: Annotated[
        str, typer.Option(help="feature set of the training images, with label maps: folder, receipt, address")
    ],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[Path, typer.Option(help="folder for metrics.json, tables, trained heads and label maps")],
    val: Annotated[
        str | None, typer.Option(help="feature set to select settings on  [default: a share of the training images]")
    ] = None,
    protocol: Annotated[
        list[str] | None, typer.Option(help="knn, logistic or linear; several times for several  [default: all]")
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            help="resolution of the compared label maps beside the grid of patches: original, or the shorter side of the "
            "view's frame in pixels; may be repeated  [default: original]"
        ),
    ] = None,
    ks: Annotated[str, typer.Option(help="numbers of neighbours, with commas")] = "1,3,10,30",
    metric: Annotated[list[str] | None, typer.Option(help="of k-NN: cosine or euclidean  [default: both]")] = None,
    cs: Annotated[str | None, typer.Option(help="C of logistic regression, with commas  [default: 8 from 1e-6 to 1e5]")] = None,
    standardise: Annotated[
        bool, typer.Option("--standardise/--as-stored", help="scale channels for k-NN and logistic regression")
    ] = True,
    epochs: Annotated[int, typer.Option(min=1, help="of the linear head")] = 20,
    batch_size: Annotated[int, typer.Option(min=2, help="images of a step of the linear head")] = 16,
    base_lrs: Annotated[
        str, typer.Option(help="of AdamW for a batch of 256, with commas: the best is taken")
    ] = "0.032,0.128,0.512",
    weight_decays: Annotated[str, typer.Option(help="likewise")] = "0.01",
    seeds: Annotated[str, typer.Option(help="of the linear head, with commas")] = "0,1,2",
    loss_size: Annotated[
        int | None,
        typer.Option(min=8, help="shorter side of the frame of the linear head's loss, pixels  [default: the view's]"),
    ] = None,
    views: Annotated[
        int | None, typer.Option(min=1, help="stored views of the training images for the linear head  [default: all]")
    ] = None,
    block: Annotated[int | None, typer.Option(help="block whose tokens are read  [default: the deepest stored]")] = None,
    final_norm: Annotated[
        bool, typer.Option("--final-norm/--no-final-norm", help="apply the encoder's last LayerNorm to the tokens first")
    ] = False,
    held_out: Annotated[float, typer.Option(help="share of the training images to select on")] = 0.1,
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
        int, typer.Option(min=0, help="processes that decode label maps of the linear head beside this one")
    ] = 0,
    save_maps: Annotated[int, typer.Option(min=0, help="images of which predicted label maps are saved as PNG")] = 0,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    placement: Annotated[
        str, typer.Option(help="of the tokens: device, memory, stream, or auto: the first that fits")
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """Classify patches by k-NN, logistic regression and a linear head, and compare with label maps: mIoU.

    Settings are selected on held-out training images or on --val, by mIoU on the grid of patches; test images select nothing.
    Baselines that see no image are reported, too: the most frequent class, and classes drawn by their share.

    miou_grid compares patch labels with patch labels, miou_original pixels of the original images, miou_512 those of the view's
    frame at 512 pixels; values at different resolutions don't compare. Void is ignored; classes that neither truth nor
    predictions have do not count.

    Writes metrics.json; per_class.csv; confusion.csv; linear/seed0.safetensors, … and logistic/seed0.safetensors, which
    `beyondcls.online` loads; curves.csv; and with --save-maps maps/PROTOCOL/ID.png, in which a value is a class and 255 is what
    the view does not show. A run that was killed goes on when the same command is given again.
    """
    from pipelines.process.allocator import keep_freed_memory
    from pipelines.process.device import choose_device
    from pipelines.process.progress import progress_bar
    from probe.closed.nearest import METRICS
    from probe.grid import HeadPlan
    from probe.recipe import Recipe
    from probe.segmentation.logistic import CS, Logistic
    from probe.segmentation.neighbours import Neighbours
    from probe.segmentation.run import LINEAR, PROTOCOLS, Protocols
    from probe.segmentation.sets import Sets
    from store import BeyondClsError
    from store.errors import unknown

    for name in protocol or ():
        if name not in PROTOCOLS:
            raise BeyondClsError(unknown("protocol", name, PROTOCOLS))
    resolutions = [_resolution(text) for text in at or ["original"]]
    learn, judge, validation = (None if name is None else open_features(name, params) for name in (features, test, val))
    assert learn is not None
    assert judge is not None
    lrs, decays = tuple(numbers("--base-lrs", base_lrs)), tuple(numbers("--weight-decays", weight_decays))
    recipe = Recipe(
        epochs, batch_size, optimiser="adamw", base_lr=lrs[0], weight_decay=decays[0], warmup_epochs=min(2, epochs - 1)
    )
    protocols = Protocols(
        tuple(protocol or PROTOCOLS),
        Neighbours(tuple(integers("--ks", ks)), tuple(metric or METRICS), standardise),
        Logistic(CS if cs is None else tuple(numbers("--cs", cs)), standardise),
        HeadPlan(LINEAR.head, recipe, tuple(integers("--seeds", seeds)), lrs, decays),
        loss_size or min(learn.spec.transform["input_size"][1:]),
    )
    keep_freed_memory()
    shown_views = _views(learn, views)
    sets = Sets(
        learn,
        judge,
        validation,
        block,
        shown_views,
        final_norm,
        held_out,
        placement=placement,  # type: ignore[arg-type]
        workers=workers,
        device=choose_device(device),
    )
    measures = run(sets, protocols, resolutions, out, probes, head, foreground, save_maps, progress_bar)
    report(out, measures)


def report(out: Path, measures: dict[str, Any]) -> None:
    """Print results and notes."""
    for name, content in measures["protocols"].items():
        values = [f"{m} {v['mean']:5.1f} %" for m, v in content.items() if m.startswith("miou")]
        typer.echo(f"{name:20} {'   '.join(values)}   pixel accuracy {_accuracy(content):5.1f} %")
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


def run(
    sets: "Sets",
    protocols: "Protocols",
    resolutions: "Sequence[str | int]",
    out: Path,
    probes: Path | None,
    heads: Sequence[str] | None,
    foreground: str | None,
    save_maps: int,
    bars: Any,
) -> dict[str, Any]:
    """Run the protocols and write their results; returns the content of metrics.json."""
    import shutil

    import numpy as np

    from probe.checkpoint import remove_checkpoints
    from probe.segmentation.results import save_label_map, write
    from probe.segmentation.run import segment

    about: dict[str, Any] = {"command": shlex.join(["beyondcls", *sys.argv[1:]])}
    if foreground is not None or probes is not None:  # first, so that errors are raised before anything trains
        about["foreground"] = compare_foreground(sets.test, probes, heads, foreground)
    rows = sets.tested.rows
    saved = set(rows[np.unique(np.linspace(0, len(rows) - 1, min(save_maps, len(rows))).round().astype(int))].tolist())
    shutil.rmtree(out / "maps", ignore_errors=True)

    def keep(name: str, row: int, label_map: "np.ndarray") -> None:
        if row in saved:
            file = out / "maps" / name / f"{sets.test.ids[row].replace('/', '_')}.png"
            save_label_map(file, label_map, len(sets.classes))

    unfinished = out.parent / ".unfinished" / out.name
    result = segment(
        sets, protocols, resolutions, unfinished=unfinished, bars=bars, say=typer.echo, keep=keep if saved else None
    )
    measures = write(out, sets, protocols, result, about)
    remove_checkpoints(unfinished)
    return measures


def compare_foreground(
    store: "FeatureStore", probes: Path | None, heads: Sequence[str] | None, classes: str | None
) -> dict[str, Any]:
    """Shares of weight on the foreground, of attention maps and heads: the entry `foreground` of metrics.json.

    Raises:
        BeyondClsError: nothing to compare, or as `foreground_of`.
    """
    from pipelines.localise import score_maps
    from probe.localisation.foreground import class_names, foreground_of, measure_foreground

    names = class_names(classes)
    truth = foreground_of(store, names)
    kinds = score_maps(store, truth.rows, probes, heads, 0)
    return {"classes": names, "maps": [measure_foreground(kind, truth) for kind in kinds]}


def _views(store: "FeatureStore", views: int | None) -> Sequence[int]:
    """Views for the linear head: random crops alone where there are any."""
    from probe.run import shown_views

    return shown_views(store, views, False)


def _resolution(text: str) -> str | int:
    from store import BeyondClsError

    if text == "original":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise BeyondClsError(f"--at is {text!r}, expected original or a number of pixels such as 512")
    return int(text)


def _accuracy(content: dict[str, Any]) -> float:
    return next(v["mean"] for m, v in reversed(content.items()) if m.startswith("accuracy"))
