"""`beyondcls norms`: norms of patch tokens, and what outliers among them draw."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.process.command_log import recorded_command
from pipelines.sharing.places import open_features

OWN = ("block", "quantiles", "cutoff", "share", "images")  # of a block; what else there is, is drawn by outliers

if TYPE_CHECKING:
    from probe.token_norms import TokenNorms


def main(
    features: Annotated[str, typer.Option(help="feature set: its folder, receipt, or address")],
    out: Annotated[Path, typer.Option(help="folder for metrics.json, description.json, where.npz and a picture of each block")],
    probes: Annotated[
        list[Path] | None,
        typer.Option(help="folder that holds HEAD/trained/weights.npy of heads tested on these images; may be repeated"),
    ] = None,
    times: Annotated[float, typer.Option(help="a token is an outlier above this multiple of the block's median norm")] = 3.0,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
) -> None:
    """Measure norms of patch tokens in each block that keeps them: quantiles, the share of outliers, and where they lie.

    Beside it: how many times as much attention of [cls], and weight of each head of --probes, an outlier draws as a patch does
    on average. where.npz has the share of images in which each patch is an outlier, [rows, columns] by block.
    """
    import numpy as np

    from pipelines.divergence import weights_of_heads
    from pipelines.process.progress import progress_bar
    from probe.result_files import METRICS, described_images, result_folder, write_result
    from probe.token_norms import QUANTILES, TokenNorms, attention_of_cls, norms_of
    from store import BeyondClsError

    store = open_features(features, params)
    result = result_folder(out, store.attributes["encoder"], ("block*.svg", "where.npz"))
    store.check_evaluation_crop()
    rows, heads = np.flatnonzero(store.valid), weights_of_heads(probes or [])
    for head in heads:
        if head.key != store.spec.key or len(head.weights) != len(rows):
            raise BeyondClsError(
                f"{head.folder} was tested on {len(head.weights):,} images of the feature set {head.key}, and {store.where} "
                f"has {len(rows):,} usable ones of {store.spec.key}; give heads that were tested on all of these images"
            )
    if not (blocks := sorted(store.spec.blocks)) or "patch" not in store.kinds:
        raise BeyondClsError(f"{store.where} has no patch tokens; extract it with --blocks, and without --vectors only")
    described: list[dict[str, Any]] = []
    found: dict[int, TokenNorms] = {}
    with progress_bar("measuring", len(blocks), "blocks") as advance:
        for block in blocks:
            found[block] = tokens = TokenNorms(norms_of(store, block, rows), times)
            weights = {"attention": attention_of_cls(store, block, rows)} if block in store.map_blocks("cls") else {}
            weights |= {f"weight of {head.name}": head.weights for head in heads if block == blocks[-1]}
            quantiles = dict(zip(map(str, QUANTILES), np.quantile(tokens.norms, QUANTILES).tolist(), strict=True))
            described.append({"block": block, "quantiles": quantiles, "cutoff": tokens.cutoff, **tokens.measures(weights)})
            advance(1)
    content = {**described_images(store, len(rows)), "times": times, "blocks": described, "command": recorded_command()}
    with result.written() as folder:
        write_result(folder / METRICS, content, {f"block{row['block']}": row for row in described})
        np.savez(folder / "where.npz", **{f"block{block}": one.where.reshape(store.grid) for block, one in found.items()})  # type: ignore[arg-type]
        for block, one in found.items():
            _plot(one, store.grid, f"block {block}", folder / f"block{block}.svg")
    for row in described:
        drawn = "".join(f", {name} x {v['mean']:.2f}" for name, v in row.items() if name not in OWN)
        share, images = row["share"]["mean"], row["images"]["mean"]
        typer.echo(
            f"block {row['block']}: {share:.2f} % of tokens above {row['cutoff']:.3g}, in {images:.1f} % of images{drawn}"
        )
    typer.echo(f"{out}: {len(rows):,} images")


def _plot(tokens: "TokenNorms", grid: tuple[int, int], title: str, file: Path) -> None:
    """How norms are distributed, and where outliers lie."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "beyondcls", "svg.fonttype": "none"}):
        plot = Figure(figsize=(7, 2.8), layout="constrained")
        left, right = plot.subplots(1, 2)
        left.hist(tokens.norms.ravel(), bins=100, log=True, color="0.35")
        left.axvline(tokens.cutoff, color="C3")
        left.set(xlabel="norm of patch tokens", ylabel="tokens", title=title)
        shown = right.imshow(100 * tokens.where.reshape(grid), vmin=0)
        right.set(title="images in which it is an outlier, %", xticks=[], yticks=[])
        plot.colorbar(shown, ax=right)
        plot.savefig(file, metadata={"Date": None})
