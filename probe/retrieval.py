"""Retrieval of instances: whether the images most like a query show the same building, or are copies of the query.

Nothing is trained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from probe.geometry import kind_of_vector, vectors, vectors_in
from probe.sources import check_encoder
from probe.subsets import over_images, readable_rows
from store import BeyondClsError, FeatureStore
from store.format.layout import ArrayName

# Relations of an image to a query by which it is to be found, and by which it counts neither way (Radenović et al. 2018).
PROTOCOLS = {
    "easy": (("easy",), ("hard", "junk")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("easy", "junk")),
}
RELATIONS = ("easy", "hard", "junk")
KS = (1, 5, 10)  # images from the nearest on, of which precision is measured


@dataclass(frozen=True, eq=False)
class Search:
    """What is to be found.

    Attributes:
        queries: ids of images.
        relations: of each query, ids of images by RELATIONS; all that are named nowhere are to be ranked below.
        images: ids of all images among which it is looked for; None: all of the feature set.
    """

    queries: Sequence[str]
    relations: Sequence[Mapping[str, Sequence[str]]]
    images: Sequence[str] | None = None

    @property
    def protocols(self) -> Sequence[str]:
        """Those that have something to be found; without hard images "medium" alone, as all others would say the same."""
        named = {relation for of_query in self.relations for relation, ids in of_query.items() if ids}
        return [name for name in PROTOCOLS if named & {*PROTOCOLS[name][0]}] if "hard" in named else ["medium"]


@dataclass(frozen=True, eq=False)
class Ranked:
    """A search in rows of feature sets.

    Attributes:
        queries: rows of the queries in their set.
        images: rows of those among which it is looked for.
        to_find, left_out: of each protocol, places in `images` by query: what is to be found, what counts neither way.
    """

    queries: Int[np.ndarray, "n"]
    images: Int[np.ndarray, "N"]
    to_find: Mapping[str, Sequence[Int[np.ndarray, "K"]]]
    left_out: Mapping[str, Sequence[Int[np.ndarray, "M"]]]


def ranked(search: Search, store: FeatureStore, queries: FeatureStore) -> Ranked:
    """The search in two feature sets, which may be one: then no query is to be found for itself.

    Raises:
        BeyondClsError: an image that is named is not there, or could not be read.
    """
    of_queries = readable_rows(queries, search.queries)
    rows = np.flatnonzero(store.valid) if search.images is None else readable_rows(store, search.images)
    place_of = {int(row): place for place, row in enumerate(rows)}
    names = sorted({name for of_query in search.relations for ids in of_query.values() for name in ids})
    row_of = dict(zip(names, readable_rows(store, names).tolist(), strict=True))

    def places(query: int, relations: Sequence[str], is_junk: bool) -> Int[np.ndarray, "K"]:
        found = {row_of[name] for relation in relations for name in search.relations[query].get(relation, ())}
        itself = {int(of_queries[query])} if queries.spec.key == store.spec.key else set()
        found = found | itself if is_junk else found - itself
        return np.array(sorted(place_of[row] for row in found if row in place_of), np.int64)

    each = range(len(of_queries))
    to_find = {name: [places(query, PROTOCOLS[name][0], False) for query in each] for name in search.protocols}
    left_out = {name: [places(query, PROTOCOLS[name][1], True) for query in each] for name in search.protocols}
    return Ranked(of_queries, rows, to_find, left_out)


def vectors_of_both(store: FeatureStore, queries: FeatureStore, kinds: Iterable[str]) -> list[tuple[ArrayName, ArrayName]]:
    """Arrays of vectors of the images and of the queries, of the same kind and block, as `vectors_in` gives them.

    Raises:
        BeyondClsError: sets of two encoders or transforms, or without such vectors in common.
    """
    check_encoder(store, queries)
    of_images, of_queries = (
        {(kind_of_vector(name), name.block): name for name in vectors_in(some, kinds)} for some in (store, queries)
    )
    both = [(name, of_queries[place]) for place, name in of_images.items() if place in of_queries]
    if not both:
        raise BeyondClsError(
            f"{store.where} and {queries.where} have vectors of no block in common, {', '.join(map(str, of_images.values()))} "
            f"and {', '.join(map(str, of_queries.values()))}; extract both with the same --blocks, or with --vectors all"
        )
    return both


def retrieval(
    store: FeatureStore, queries: FeatureStore, names: tuple[ArrayName, ArrayName], found: Ranked
) -> dict[str, dict[str, Any]]:
    """How well the vectors of an array find what is to be found, by cosine; percent, by protocol, as `over_images` makes it.

    `map` is the mean over queries of average precision, under the curve of precision and recall by trapezoids; `precision_5`
    the share of right ones among the five nearest, or among those up to the last right one, if that comes earlier; `micro_ap`
    the average precision of all pairs of a query and an image in one ranking by cosine. Of images as near as each other those
    that are not to be found come first. Queries for which nothing is to be found do not count. Queries are left out in turn.

    Args:
        names: of `vectors_of_both`.
        found: of `ranked`.

    Source: Radenović et al. 2018 (Revisiting Oxford and Paris, arXiv 1803.11285), with the average precision of their code;
        micro AP: Douze et al. 2021 (DISC21, arXiv 2106.09672).
    """
    both = zip((store, queries), names, (found.images, found.queries), strict=True)
    x, asked = (_normalise(vectors(some, name, rows)) for some, name, rows in both)
    cosines = [x @ query for query in asked]
    return {protocol: _measure_ranks(cosines, found.to_find[protocol], found.left_out[protocol]) for protocol in found.to_find}


def _measure_ranks(
    cosines: Sequence[Float[np.ndarray, "N"]], to_find: Sequence[np.ndarray], left_out: Sequence[np.ndarray]
) -> dict[str, Any]:
    used = [query for query in range(len(cosines)) if len(to_find[query])]
    right = [np.sort(cosines[query][to_find[query]])[::-1] for query in used]
    wrong = [np.sort(np.delete(cosines[query], [*to_find[query], *left_out[query]])) for query in used]
    of_each = np.array([_measures_of_ranks(_ranks(*both)) for both in zip(right, wrong, strict=True)])
    measured = {
        name: over_images(len(used), lambda chosen, i=i: 100 * float(of_each[chosen, i].mean()))  # type: ignore[misc]
        for i, name in enumerate(("map", *(f"precision_{k}" for k in KS)))
    }

    def micro(chosen: np.ndarray) -> float:
        kept = np.flatnonzero(chosen)
        ranks = _ranks(*(np.sort(np.concatenate([some[i] for i in kept])) for some in (right, wrong)))
        return 100 * float((np.arange(1, len(ranks) + 1) / (ranks + 1)).mean())

    return measured | {"micro_ap": over_images(len(used), micro), "n_queries": len(used)}


def _ranks(right: Float[np.ndarray, "K"], wrong: Float[np.ndarray, "M"]) -> Int[np.ndarray, "K"]:
    """Ranks of the right ones, from 0 on, ascending; `wrong` is ascending."""
    descending = np.sort(right)[::-1]
    return np.arange(len(right)) + len(wrong) - np.searchsorted(wrong, descending, "left")


def _measures_of_ranks(ranks: Int[np.ndarray, "K"]) -> list[float]:
    """Average precision, and precision of each of KS."""
    counted = np.arange(len(ranks))
    before = np.where(ranks == 0, 1, counted / np.maximum(ranks, 1))
    at = [min(int(ranks[-1]) + 1, k) for k in KS]
    return [float((before + (counted + 1) / (ranks + 1)).mean() / 2), *(float((ranks < k).sum() / k) for k in at)]


def _normalise(x: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return (x / np.maximum(lengths, 1e-30)).astype(np.float32)
