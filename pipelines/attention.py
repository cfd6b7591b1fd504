"""`beyondcls attention`: the attention statistics of a feature set, per block and per head."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pipelines.sharing.places import open_features

QUARTILES = ("lower_quartile", "median", "upper_quartile")


def main(
    features: Annotated[str, typer.Option(help="feature set: its folder, receipt, or address")],
    out: Annotated[Path, typer.Option(help="folder for tables and maps")],
    block: Annotated[int | None, typer.Option(help="of the maps  [default: the deepest that is stored]")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
) -> None:
    """Average the stored attention statistics over images (Fig. 3-6), and keep the [cls] maps of a block.

    Writes statistics.csv (block, statistic, and over images of the mean over heads: mean, std, median and quartiles), heads.csv
    (mean and median over images per block and head), maps/cls_map.npy ([N, T] float16: a block's [cls] attention, mean over
    heads, renormalised over patches; only for encoders with [cls]), maps/crops.npy ([N, 4] float32: x0, y0, x1, y1 of what the
    encoder saw, in pixels of the original) and summary.json, which has titles and units of the statistics, and names those
    without bound, of which medians tell more.
    """
    import csv

    import numpy as np

    from extract.attention import PER_BLOCK, STATISTICS, facts_of
    from probe.result_files import result_folder
    from store.format.pretraining import pretraining_fields

    store, maps_of_earlier = open_features(features, params), ("maps/cls_map.npy", "maps/crops.npy")
    result = result_folder(out, store.attributes["encoder"], maps_of_earlier, mark="summary.json")
    store.check_evaluation_crop()
    rows = np.flatnonzero(store.valid)
    per_block, per_head = [], []
    for name in store.spec.statistics:
        values = store.array(f"statistics/{name}/view0").rows(rows).astype(np.float64)  # [N, L, H], or [N, L] per block
        over_heads = values.mean(2) if values.ndim == 3 else values
        quartiles = dict(zip(QUARTILES, np.quantile(over_heads, (0.25, 0.5, 0.75), axis=0), strict=True))
        measured = {"mean": over_heads.mean(0), "std": over_heads.std(0), **quartiles}  # [L] each
        for index in range(over_heads.shape[1]):
            per_block.append({"statistic": name, "block": index, **{measure: v[index] for measure, v in measured.items()}})
        medians = np.median(values, 0)  # [L, H]
        per_head += [
            {"statistic": name, "block": index, "head": head, "mean": mean, "median": medians[index, head]}
            for (index, head), mean in (np.ndenumerate(values.mean(0)) if values.ndim == 3 else ())
        ]
    with result.written() as folder:
        (folder / "maps").mkdir()
        for file, table in (("statistics.csv", per_block), ("heads.csv", per_head)):
            with (folder / file).open("w", newline="") as target:
                writer = csv.DictWriter(target, list(table[0]) if table else ["statistic", "block", "mean"])
                writer.writeheader()
                writer.writerows(table)
        n_tokens = store.tokens("patch").shape[1] if "patch" in store.kinds else None
        if store.map_blocks("cls"):
            block = store.map_block("cls") if block is None else block
            maps = store.attention("cls", block).rows(rows).astype(np.float32).mean(1)  # [N, T], averaged over heads
            np.save(folder / "maps/cls_map.npy", (maps / maps.sum(-1, keepdims=True)).astype(np.float16))
            n_tokens = maps.shape[-1]
        if "images/crop/view0" in store.attributes["arrays"]:  # missing in a set that was made from tokens only
            np.save(folder / "maps/crops.npy", store.array("images/crop/view0").rows(rows))
        known = {name: facts_of(name) for name in (*STATISTICS, *PER_BLOCK) if name in store.spec.statistics}
        summary = {
            "encoder": store.attributes["encoder"],
            **pretraining_fields(store.attributes),
            "key": store.spec.key,
            "data": store.spec.data,
            "n_images": len(rows),
            "n_tokens": n_tokens,
            "block": block,  # of the maps
            "classes": store.attributes["classes"],
            "architecture": json.loads(store.spec.architecture),
            "statistics": {name: {"title": facts.title, "unit": facts.unit} for name, facts in known.items()},
            "unbounded": [name for name, facts in known.items() if not facts.is_bounded],
        }
        (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    typer.echo(f"{out}: {len(store.spec.statistics)} statistics of {len(rows):,} images")
