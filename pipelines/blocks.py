"""`beyondcls blocks`: accuracy by block, from the vectors that feature sets hold of every block."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.parameters.heads import plans_and_run
from pipelines.parameters.layers import Layer, common_layers
from pipelines.parameters.options import select_options, takes_options, with_defaults
from pipelines.parameters.params import read_params
from pipelines.parameters.training import OF_A_HEAD, OF_A_PROTOCOL, OF_A_RECIPE, OF_A_RUN
from pipelines.process.command_log import recorded_command
from pipelines.process.tasks import is_first
from pipelines.sharing.places import open_features
from probe.recipe import Recipe

# Of `beyondcls probe`, without what would choose a block, a part of the images or a protocol, and without the norm of tokens.
OF_HEADS = {name: option for name, option in OF_A_HEAD.items() if name not in ("final_norm", "protocol")}
OF_RUN = {name: OF_A_RUN[name] for name in ("views", "mix_evaluation_view", "held_out", "placement")}


@takes_options(with_defaults(OF_A_RECIPE, Recipe), OF_HEADS, OF_A_PROTOCOL, OF_RUN)
def main(
    features: Annotated[str, typer.Option(help="feature set of the training images: its folder, receipt, or address")],
    test: Annotated[str, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[Path, typer.Option(help="folder for metrics.json, blocks.csv, blocks.svg, and heads")],
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="an aggregator that reads single blocks; may be repeated. abmilp, of blocks whose patch tokens are kept, is "
            "measured with the default; cls, average and encoder-pooling are in its place  [default: those three, as far as "
            "the sets allow]"
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="in addition to the trained heads, of those without parameters: knn, logistic, ridge, or none")
    ] = "knn",
    params: Annotated[Path | None, typer.Option(help="take probe and store from this file; options given here win")] = None,
    encoder: Annotated[str | None, typer.Option(help="take what encoders.NAME in --params says of training, too")] = None,
    dataset: Annotated[str | None, typer.Option(help="take what datasets.NAME in --params says of training, too")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
    **given: Any,
) -> None:
    """Compare the blocks of an encoder: a linear head, and k nearest neighbours, on [cls] and on the average patch of each.

    The feature sets hold these of every block if they were extracted with --vectors all; else those of the blocks whose tokens
    are kept, of which --head abmilp adds AbMILP. All blocks train side by side, with one reading of what they share. A run that
    was killed goes on when the same command is given again, and heads that are in --out stay if
    they were trained from the same request.
    """
    from pipelines.process.device import choose_device
    from pipelines.report.sections.by_block import figure_of, read_by_block
    from probe.blocks import make_protocol, probe_blocks, write_blocks
    from probe.result_files import result_folder

    described = {} if params is None else read_params(params)
    layers = [
        Layer(layer.where, select_options(layer.values, (*OF_A_RECIPE, *OF_HEADS, *OF_RUN)))
        for layer in common_layers(described, encoder, dataset)
    ]
    of_heads = select_options(given, (*OF_A_RECIPE, *OF_HEADS, *OF_RUN))
    plans, run = plans_and_run(["cls"], {"cls_heads": {"cls": {}}}, of_heads, {}, layers)
    stores = (open_features(features, params), open_features(test, params))
    result = result_folder(out, stores[1].attributes["encoder"])
    closed = None if protocol == "none" else make_protocol(protocol, stores[0], **select_options(given, OF_A_PROTOCOL))
    content = probe_blocks(
        *stores,
        out,
        plans["cls"],
        head,
        closed=closed,
        device=choose_device(device),
        say=typer.echo if is_first() else None,
        notes={"command": recorded_command()},
        **run,
    )
    if is_first():
        with result.written() as folder:
            write_blocks(folder, content)
            figure = figure_of(read_by_block(folder / "metrics.json"), "blocks")
            (folder / "blocks.svg").write_bytes(figure.files["svg"]())
        for row in content["rows"]:
            reached = row[content["measure"]]
            typer.echo(
                f"{row['head']} of block {row['block']}, {row['protocol']}: {reached['mean']:.2f} ± {reached['std']:.2f} %"
            )
        typer.echo(f"{out / 'blocks.svg'}")
