"""Older feature sets: their attention maps are of the last block only, named `attention/cls/view0`, without a block; and they
lack the vectors of an encoder's own pooling.
"""

from dataclasses import replace

from store import FeatureSpec, FeatureStore
from store.format.layout import ArrayName


def unnumbered_spec(spec: FeatureSpec, last_block: int) -> FeatureSpec | None:
    """The description that an older set with the same arrays has, if its maps are those of the last block only; else None."""
    rows = [name.partition("/block")[0] for name in spec.maps if name.endswith(f"/block{last_block}")]
    return replace(spec, maps=tuple(rows)) if rows and len(rows) == len(spec.maps) else None


def pooling_note(base: FeatureStore, spec: FeatureSpec) -> str:
    """What becomes of a set from before its encoder's own pooling was kept, if `spec` is that set with it; else empty."""
    pooled = replace(base.spec, vectors=(*base.spec.vectors, "pooled"))
    if base.spec.is_pooled or spec.key not in (pooled.key, replace(pooled, maps=spec.maps).key):
        return ""
    return (
        f"{base.where} lacks the vectors that its encoder's own pooling gives; they are added, all else is taken over, and the "
        f"key becomes {spec.key}"
    )


def older_names(base: FeatureStore, last_block: int) -> dict[str, str]:
    """Current names of an older set's attention maps -> the names that they have in the set."""
    return {
        str(replace(parts, block=last_block)): str(parts)
        for parts in map(ArrayName.parse, base.arrays)
        if parts.kind == "attention" and parts.block is None and parts.view is not None
    }
