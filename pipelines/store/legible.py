"""How a damaged feature set was made, as far as its remains still tell."""

import json
import re
from pathlib import Path
from typing import Any

from store.errors import StoreError
from store.format.layout import ATTRIBUTE, SCALE
from store.format.spec import FeatureSpec


def options_of(path: Path) -> dict[str, Any]:
    """Options of `beyondcls extract` that made the feature set at `path`, as far as its damaged files tell.

    A readable spec that matches the key beside it is trusted; else options follow from names of folders.
    """
    file = path / "zarr.json"
    text = file.read_bytes().decode(errors="replace") if file.is_file() else ""
    options: dict[str, Any] = {}
    encoder = _fragment(text, "encoder")
    if isinstance(encoder, str):
        options["encoder"] = encoder
    try:
        spec = FeatureSpec.from_dict(_fragment(text, "spec"))
        if spec.key == _fragment(text, "key"):
            options |= options_of_spec(spec)
    except (StoreError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    if "dtype" not in options:
        options |= _options_of_folders(path)
    if not all(b"\0" not in shard.read_bytes()[:n] for shard, n in _valid_rows(path)):
        options["on_error"] = "record"
    return options


def options_of_spec(spec: FeatureSpec) -> dict[str, Any]:
    """Options of `beyondcls extract` that give a spec."""
    amp = {"bfloat16": "bf16", "float16": "fp16"}.get(spec.compute_dtype)
    return {
        **({"views": spec.n_views} if spec.n_views > 1 else {}),
        **({"drop_path": spec.drop_path} if spec.drop_path else {}),
        **({"amp": amp} if amp else {}),
        "blocks": ",".join(map(str, spec.blocks)),
        "statistics": ",".join(spec.statistics) or "none",
        "maps": bool(spec.maps),
        "dtype": spec.dtype,
    }


def _fragment(text: str, name: str) -> Any:
    """The first value of this name in a JSON text that may be damaged elsewhere; None if it is missing."""
    if (match := re.search(rf'"{name}":\s*', text)) is None:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, match.end())[0]
    except (ValueError, RecursionError):
        return None


def _options_of_folders(path: Path) -> dict[str, Any]:
    """Options that give arrays with these names; statistics in the default order of extraction."""
    from extract.attention import PER_BLOCK, STATISTICS

    blocks = sorted({int(m[1]) for folder in path.glob("*/block*") if (m := re.fullmatch(r"block(\d{1,9})", folder.name))})
    order = [*STATISTICS, *PER_BLOCK]
    folder_names = {folder.name for folder in path.glob("statistics/*") if folder.is_dir()}
    statistics = sorted(folder_names, key=lambda name: (order.index(name) if name in order else len(order), name))
    options: dict[str, Any] = {"statistics": ",".join(statistics) or "none", "maps": any(path.glob("attention/**/view*"))}
    if blocks:
        options["blocks"] = ",".join(map(str, blocks))
    views = {int(m[1]) for folder in path.glob("*/*/view*") if (m := re.fullmatch(r"view(\d{1,9})", folder.name))}
    if max(views, default=0):
        options["views"] = max(views) + 1
    for file in sorted(path.glob("patch/block*/*/zarr.json")):  # [cls] may have another codec
        try:
            codec = json.loads(file.read_bytes())["attributes"][ATTRIBUTE]["codec"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # scales, or damaged
        if isinstance(codec, str) and not file.parent.name.endswith(SCALE):
            options["dtype"] = codec
            break
    return options


def _valid_rows(path: Path) -> list[tuple[Path, int]]:
    """Shards of images/valid, a byte an image, and how many of them are not padding."""
    file = path / "images/valid/zarr.json"
    try:
        shards = json.loads(file.read_bytes())["attributes"][ATTRIBUTE]["shards"]
        n_rows = [(path / f"images/valid/c/{i}", shard["rows"][1] - shard["rows"][0]) for i, shard in enumerate(shards)]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return []
    return [(shard, n) for shard, n in n_rows if shard.is_file()]
