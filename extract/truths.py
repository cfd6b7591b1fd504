"""Adding truths to a feature set that has all else: only images that it could not read are decoded and encoded."""

from extract.patch_labels import is_patch_label
from extract.requests import Request
from extract.reuse import rows_in
from extract.writing import Start
from store import FeatureStore
from store.writing.publishing import Found


def lacks_truths_alone(stored: FeatureStore, request: Request) -> bool:
    """Whether a set has all features of a request, and differs from it in truths only."""
    is_whole = len(stored.arrays) >= len(stored.attributes["arrays"])
    return is_whole and request.named_as(stored).spec.differences(stored.spec) == ["truths"]


def with_truths(request: Request, stored: FeatureStore, replaces: Found) -> Start:
    """What the set with truths begins with: all that it has. Its features are not compared: they are taken as they are."""
    kept = [stored.arrays[name].layout for name in stored.attributes["arrays"]]
    layouts = [a for a in kept if a.has_image_axis and not is_patch_label(a.name)] + request.truth_layouts(stored.shard_rows)
    return Start(request.named_as(stored), layouts, stored, rows_in(stored, request), replaces=replaces)
