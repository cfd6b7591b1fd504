"""Heads that read tokens which the encoder does not have, such as [cls] of I-JEPA."""

from collections.abc import Mapping
from pathlib import Path

from probe.grid import HeadPlan
from probe.results import folder_of_head, write_measures
from probe.sources import JOINED, TOKENS, VECTORS, Source
from store import FeatureStore
from store.format.layout import kind_of


def absent_kinds(
    heads: Mapping[str, HeadPlan], training: FeatureStore, joined: FeatureStore | None = None
) -> dict[str, list[str]]:
    """Kinds of tokens that heads read but the encoder does not have, by head; heads that can be trained are left out.

    What was not extracted (blocks, views, attention maps, tokens beside vectors) doesn't count: it can be, and `probe` says
    how.

    Raises:
        BeyondClsError: unknown aggregator or options.
    """
    source = Source(training)
    absent = {}
    for name, plan in heads.items():
        reads = plan.head.build(source.dim, source.n_patches, training.n_classes).aggregator.reads
        if missing := [kind for kind in reads if _is_absent(kind, training, joined)]:
            absent[name] = missing
    return absent


def _is_absent(kind: str, training: FeatureStore, joined: FeatureStore | None) -> bool:
    store = joined if kind.startswith(JOINED) else training
    token_kind = kind_of(kind.removeprefix(JOINED))
    if store is None or (token_kind in ("patch", "registers") and not store.spec.blocks):
        return False
    return token_kind in (*TOKENS, *VECTORS) and token_kind not in store.extracted_kinds


def write_absent(folder: Path, plan: HeadPlan, missing: list[str], training: FeatureStore, test: FeatureStore) -> None:
    """Write into description.json that there was nothing to measure; what an earlier run wrote into `folder` is removed."""
    features = {"training": training.spec.key, "test": test.spec.key}
    encoder = training.attributes["encoder"]
    with folder_of_head(folder).written() as place:
        write_measures(place, {"encoder": encoder, **plan.head.to_dict(), "features": features, "absent": missing})
