"""Names in older feature sets, which have attention maps of the last block only: `attention/cls/view0`, without a block."""

from dataclasses import replace

from store import FeatureSpec, FeatureStore
from store.format.names import ArrayName


def unnumbered_spec(spec: FeatureSpec, last_block: int) -> FeatureSpec | None:
    """The description that an older set with the same arrays has, if its maps are those of the last block only; else None."""
    rows = [name.partition("/block")[0] for name in spec.maps if name.endswith(f"/block{last_block}")]
    return replace(spec, maps=tuple(rows)) if rows and len(rows) == len(spec.maps) else None


def older_names(base: FeatureStore, last_block: int) -> dict[str, str]:
    """Current names of an older set's attention maps -> the names that they have in the set."""
    return {
        str(replace(parts, block=last_block)): str(parts)
        for parts in map(ArrayName.parse, base.arrays)
        if parts.kind == "attention" and parts.block is None and parts.view is not None
    }
