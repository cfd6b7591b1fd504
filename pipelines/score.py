"""`beyondcls score`: trained heads on other test sets, without training and without the encoder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features
from store import BeyondClsError


def main(
    probes: Annotated[Path, typer.Option(help="PROBES/ENCODER, whose heads are all scored, or PROBES/ENCODER/HEAD")],
    test: Annotated[
        list[str],
        typer.Option(
            help="NAME=FEATURES, a feature set by the encoder of these heads; may be repeated, and the first one is what "
            "others are compared with. Names as CORRUPTION-SEVERITY (fog-3) are averaged in the report"
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            help="NAME=FEATURES that test sets are compared with, in place of the first one; its results are written only if "
            "--test names it, too"
        ),
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="NAME=FILE for a test set whose classes are called otherwise, or among whose classes alone a head chooses: a "
            "line is CLASS, or CLASS-OF-THE-TEST-SET,CLASS; may be repeated",
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="feature set to fit a temperature to: the training images, of which those serve that a head was not trained "
            "on (--percent, --k-shot), or other images; calibration is measured with it, too"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for NAME/ENCODER/HEAD of each test set")] = Path("scores"),
    own: Annotated[str | None, typer.Option(help="FILE.py:CLASS of heads with a custom aggregator; is run")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """Measure trained heads on test sets that were extracted later: ImageNet-V2, -R, -A, -Sketch, ObjectNet, -C.

    Accuracy with its gap to the first test set; negative log-likelihood, Brier score and calibration errors, after
    temperature scaling, too, with --held-out. The report shows what is in scores/ as "Other test sets".
    """
    from pipelines.process.device import choose_device
    from probe.score import score
    from probe.trained import load_trained

    named = dict(_split_names("--test", test))
    every = {**dict(_split_names("--against", [against] if against else [])), **named}  # with that first
    tests = {name: open_features(place, params) for name, place in every.items()}
    maps = {name: Path(file) for name, file in _split_names("--map", map_ or ())}
    if others := [name for name in maps if name not in tests]:
        raise BeyondClsError(f"--map {others[0]}=… is of no test set, expected one of {', '.join(tests)}; add it as --test")
    heads = [load_trained(folder, own) for folder in _folders_with_weights(probes)]
    held = None if held_out is None else open_features(held_out, params)
    how = {"device": choose_device(device), "written": named, "notes": {"command": recorded_command()}}
    for place, result in score(heads, tests, out, maps, held, **how).items():  # type: ignore[arg-type]
        scored, top1 = result["scored"], result["top1"]
        gap = f", {result['gap']['mean']:+.2f} against {scored['first']}" if "gap" in result else ""
        calibration = f"ECE {result['ece']['mean']:.1f} %"
        if "temperature" in result:
            tempered, temperature = result["tempered_ece"]["mean"], result["temperature"]["mean"]
            calibration += f", {tempered:.1f} % at temperature {temperature:.2f}"
        typer.echo(f"{place}: top-1 {top1['mean']:.2f} ± {top1['std']:.2f} %{gap}; {calibration}")
        for note in result["notes"]:
            typer.echo(f"  note: {note}")


def _split_names(option: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and places of NAME=PLACE."""
    names = set()
    for text in texts:
        name, _, place = text.partition("=")
        if not name or not place or name != Path(name).name or name.startswith("."):
            raise BeyondClsError(f"{option} is {text!r}, expected NAME=PLACE, whose name is one of a folder, without slashes")
        if name in names:
            raise BeyondClsError(f"{option} names {name!r} twice, expected another name for each; rename one of them")
        names.add(name)
        yield name, place


def _folders_with_weights(probes: Path) -> list[Path]:
    """Folders of heads; those without weights are left out, and named, where others have some."""
    if (probes / "metrics.json").is_file():
        return [probes]
    folders = [file.parent for file in sorted(probes.glob("*/metrics.json"))]
    if not folders:
        raise BeyondClsError(
            f"{probes} has no HEAD/metrics.json, expected PROBES/ENCODER of `beyondcls probe`; name the folder of one"
        )
    kept = [folder for folder in folders if any(folder.glob("trained/seed*.safetensors"))]
    for folder in folders:
        if kept and folder not in kept:
            typer.echo(f"note: {folder} keeps no weights and is left out", err=True)
    return kept or folders
