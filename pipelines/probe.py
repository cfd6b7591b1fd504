"""`beyondcls probe`: heads from feature sets, without the encoder."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from pipelines.params import check_names, given, integers, read_params, section


def main(
    features: Annotated[Path, typer.Option(help="feature set of the training images")],
    test: Annotated[Path, typer.Option(help="feature set of the test images, of the same encoder")],
    out: Annotated[Path, typer.Option(help="folder for probes, metrics and curves")],
    head: Annotated[str, typer.Option(help="an aggregator, or a name under heads in params.yaml")] = "abmilp",
    params: Annotated[
        Path | None, typer.Option(help="take heads.HEAD and probe from this file; options given here win")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="of the aggregator, e.g. --option depth=2; may be repeated")] = None,
    seeds: Annotated[str | None, typer.Option(help="with commas  [default: 0,1,2]")] = None,
    block: Annotated[int | None, typer.Option(help="whose tokens to read  [default: the deepest stored]")] = None,
    epochs: Annotated[int | None, typer.Option(help="[default: 90]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="[default: 1024]")] = None,
    optimiser: Annotated[str | None, typer.Option(help="sgd or adamw  [default: sgd]")] = None,
    base_lr: Annotated[
        float | None, typer.Option(help="learning rate of a batch of 256, scaled linearly  [default: 0.1]")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="of sgd  [default: 0.9]")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="[default: 0]")] = None,
    warmup_epochs: Annotated[int | None, typer.Option(help="[default: 10]")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto")] = "auto",
) -> None:
    """Stage two: train linear heads on cached tokens; the encoder is not needed."""
    from pipelines.device import choose_device
    from pipelines.progress import progress_bar
    from probe.run import probe
    from probe.train import Recipe
    from store import FeatureStore

    values = read_params(params) if params is not None else {}
    described: dict[str, Any] = section(values, "heads", head) if params is not None else {}
    training = section(values, "probe")
    recipe_names = [f.name for f in fields(Recipe)]
    check_names("probe", training, [*recipe_names, "seeds"])
    aggregator = described.pop("aggregator", head)
    # A head's own entry may change the recipe too; what is left are options of its aggregator.
    training |= {name: described.pop(name) for name in [*recipe_names, "seeds", "block"] if name in described}
    training |= given(
        epochs=epochs,
        batch_size=batch_size,
        optimiser=optimiser,
        base_lr=base_lr,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup_epochs=warmup_epochs,
        block=block,
    )
    if seeds is not None:
        training["seeds"] = integers("--seeds", seeds)
    chosen = training.pop("seeds", (0, 1, 2))
    read = training.pop("block", None)
    options = described | _options(option or [])
    recipe = Recipe(**training)
    place = choose_device(device)
    stores = FeatureStore.open(features), FeatureStore.open(test)
    with progress_bar(f"{stores[0].attributes['encoder']} {head}", recipe.epochs * len(chosen), "epochs") as progress:
        metrics = probe(
            *stores,
            out,
            aggregator=aggregator,
            options=options,
            recipe=recipe,
            seeds=chosen,
            block=read,
            device=place,
            progress=progress,
        )
    top1 = metrics["top1"]
    typer.echo(
        f"{out}: top-1 {top1['mean']:.2f} ± {top1['std']:.2f} % over {len(chosen)} seed(s), {metrics['n_test']:,} test images"
    )


def _options(pairs: list[str]) -> dict[str, Any]:
    """`depth=2` as {"depth": 2}; values are YAML scalars."""
    import yaml

    from store import BeyondClsError

    for pair in pairs:
        if "=" not in pair:
            raise BeyondClsError(f"--option is {pair!r}, expected name=value, e.g. depth=2")
    return {name: yaml.safe_load(value) for name, value in (pair.split("=", 1) for pair in pairs)}
