"""`beyondcls attention`: the attention statistics of a feature set, per block and per head."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pipelines.places import open_features


def main(
    features: Annotated[str, typer.Option(help="feature set: its folder, receipt, or address")],
    out: Annotated[Path, typer.Option(help="folder for tables and maps")],
    params: Annotated[Path | None, typer.Option(help="parameter file that says where shared feature sets are (store)")] = None,
) -> None:
    """Average the stored attention statistics over images (Fig. 3-6), and keep the [cls] maps of the last block.

    Writes statistics.csv (block, statistic, mean and std over images of the mean over heads), heads.csv (mean over images per
    block and head), maps/cls_map.npy ([N, T] float16: last block's [cls] attention, mean over heads, renormalised over patches;
    only for encoders with [cls]), maps/crops.npy ([N, 4] float32: x0, y0, x1, y1 of what the encoder saw, in pixels of the
    original) and summary.json.
    """
    import csv

    import numpy as np

    store = open_features(features, params)
    (out / "maps").mkdir(parents=True, exist_ok=True)
    (out / "maps/cls_map.npy").unlink(missing_ok=True)  # of another feature set, which may have had [cls]
    rows = np.flatnonzero(store.valid)
    per_block, per_head = [], []
    for name in store.spec.statistics:
        values = store.array(f"statistics/{name}/view0").rows(rows).astype(np.float64)  # [N, L, H], or [N, L] per block
        over_heads = values.mean(2) if values.ndim == 3 else values
        for block, (mean, std) in enumerate(zip(over_heads.mean(0), over_heads.std(0), strict=True)):
            per_block.append({"statistic": name, "block": block, "mean": mean, "std": std})
        per_head += [
            {"statistic": name, "block": block, "head": head, "mean": mean}
            for (block, head), mean in (np.ndenumerate(values.mean(0)) if values.ndim == 3 else ())
        ]
    for file, table in (("statistics.csv", per_block), ("heads.csv", per_head)):
        with (out / file).open("w", newline="") as target:
            writer = csv.DictWriter(target, list(table[0]) if table else ["statistic", "block", "mean"])
            writer.writeheader()
            writer.writerows(table)
    n_tokens = store.tokens("patch").shape[1] if "patch" in store.kinds else None
    if "cls" in store.spec.maps:
        maps = store.array("attention/cls/view0").rows(rows).astype(np.float32).mean(1)  # [N, T], averaged over heads
        np.save(out / "maps/cls_map.npy", (maps / maps.sum(-1, keepdims=True)).astype(np.float16))
        n_tokens = maps.shape[-1]
    np.save(out / "maps/crops.npy", store.array("images/crop/view0").rows(rows))
    summary = {
        "encoder": store.attributes["encoder"],
        "key": store.spec.key,
        "data": store.spec.data,
        "n_images": len(rows),
        "n_tokens": n_tokens,
        "classes": store.attributes["classes"],
        "architecture": json.loads(store.spec.architecture),
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    typer.echo(f"{out}: {len(store.spec.statistics)} statistics of {len(rows):,} images")
