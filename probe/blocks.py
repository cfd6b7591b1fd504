"""Accuracy by block: the same head on the vectors of each block that feature sets hold, all of them in one pass."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from probe.aggregators import make_aggregator
from probe.closed import CLOSED, Closed, described, make_closed
from probe.closed.neighbours import Neighbours
from probe.grid import HeadPlan
from probe.result_files import METRICS, write_result
from probe.run import probe
from probe.sources import OF_BLOCKS, Source, check_pair
from store import FeatureStore, StoreError
from store.format.layout import ArrayName
from store.format.pretraining import pretraining_fields
from store.shown import csv_cell

DEFAULT = ("cls", "average")  # heads that are measured where nothing else is asked for, as far as sets have what they read
POOLING = "encoder-pooling"  # with them, where there is one; it belongs to the last block
LINEAR = "linear"  # the protocol of heads that are trained by steps


def probe_blocks(
    training: FeatureStore,
    test: FeatureStore,
    out: Path,
    plan: HeadPlan,
    heads: Sequence[str] | None = None,
    *,
    closed: Closed | None = None,
    notes: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a head on each block by itself; returns what `write_blocks` writes.

    Args:
        training, test: feature sets of one encoder.
        out: folder that gets `heads/NAME`, each as `probe.run.probe` writes it.
        plan: how the heads are trained; its aggregator does not matter.
        heads: aggregators with an option `blocks`, of the blocks for which both sets have what they read. By default [cls] and
            the average patch, and the encoder's own pooling if it has one; these are measured with others (AbMILP, on blocks
            whose patch tokens are kept), unless `heads` names some of them.
        closed: a protocol without gradient steps, for aggregators without parameters, in addition to the trained heads.
        notes: part of what is returned, e.g. the command.
        options: of `probe.run.probe`.

    Raises:
        BeyondClsError: unknown aggregator, or one that cannot read a block by itself.
        StoreError: feature sets that do not belong together, or that lack what a head reads in every block.
    """
    check_pair(training, test)
    places = _heads_of_study(heads, Source(training), Source(test), plan, closed)
    of_heads = {name: head_plan for name, (_, head_plan) in places.items()}
    measured = probe(training, test, out / "heads", of_heads, **{"converged": False, **options})  # it would not be shown
    first = next(iter(measured.values()))
    measure = "map" if "map" in first else "top1"
    rows = [
        {**place, measure: measured[name][measure], "bytes_per_image": measured[name]["cost"]["bytes_per_image"]}
        for name, (place, _) in places.items()
    ]
    return {
        "encoder": training.attributes["encoder"],
        **pretraining_fields(training.attributes),
        "features": {"training": training.spec.key, "test": test.spec.key},
        "measure": measure,
        **{name: first[name] for name in ("n_training", "n_test", "n_classes")},
        "seeds": list(plan.seeds),
        "recipe": asdict(plan.recipe),
        "protocol": None if closed is None else described(closed),
        "rows": rows,
        **(notes or {}),
        **{name: first[name] for name in ("versions", "machine")},
    }


def write_blocks(out: Path, content: Mapping[str, Any]) -> None:
    """Write metrics.json and description.json; and blocks.csv: head, block, protocol, mean and standard deviation over seeds,
    bytes of an image.

    The measure is top1, or map of several labels, in percent.
    """
    measure = content["measure"]
    named = {"-".join((row["head"], f"block{row['block']}", row["protocol"])): row for row in content["rows"]}
    write_result(out / METRICS, content, {name: {measure: row[measure]} for name, row in named.items()})
    with (out / "blocks.csv").open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["head", "block", "protocol", measure, f"{measure}_std", "bytes_per_image"])
        for row in content["rows"]:
            place = csv_cell(row["head"]), row["block"], row["protocol"]
            writer.writerow([*place, row[measure]["mean"], row[measure]["std"], row["bytes_per_image"]])


def _heads_of_study(
    heads: Sequence[str] | None, training: Source, test: Source, plan: HeadPlan, closed: Closed | None
) -> dict[str, tuple[dict[str, Any], HeadPlan]]:
    """Heads of the study by name: `head`, an aggregator, the `block` that it reads and its `protocol`; and how each is trained.

    Raises:
        StoreError: there is no block that a head can read; of the default heads, that none can.
    """
    places: dict[str, tuple[dict[str, Any], HeadPlan]] = {}
    named, usual = list(heads or ()), (*DEFAULT, POOLING)
    for head in named if set(named) & {*usual} else (*usual, *named):
        blocks = readable_blocks(head, training, test)
        if head in named and not blocks:
            raise _no_block_error(head, training, test)
        for block in blocks:
            options: dict[str, Any] = {} if head == POOLING else {"blocks": [block]}
            place: dict[str, Any] = {"head": head, "block": block}
            head_plan = replace(plan, head=replace(plan.head, aggregator=head, options=options))
            places[f"{head}-block{block}"] = place | {"protocol": LINEAR}, head_plan
            if closed is not None and not make_aggregator(head, training.dim, training.n_patches, **options).trainable:
                name = described(closed)["name"]
                places[f"{head}-block{block}-{name}"] = place | {"protocol": name}, replace(head_plan, closed=closed)
    if not places:
        raise _no_block_error(" and ".join(DEFAULT), training, test)
    return places


def make_protocol(name: str, training: FeatureStore, **options: Any) -> Closed:
    """A protocol without gradient steps, by default without numbers of neighbours that are too large for a small set.

    Raises:
        BeyondClsError: unknown name or option, or values that cannot be.
        StoreError: no image is usable.
    """
    if name not in CLOSED or CLOSED[name] is not Neighbours:
        return make_closed(name, **options)
    few = len(Source(training).rows) // 2
    return make_closed(name, **{"ks": tuple(k for k in Neighbours.ks if k <= few) or (1,)} | options)


def readable_blocks(head: str, training: Source, test: Source) -> list[int]:
    """Blocks of which both sets hold what an aggregator reads, tokens or vectors, ascending.

    Raises:
        BeyondClsError: unknown aggregator, or one without the option `blocks`.
    """
    names = map(ArrayName.parse, training.store.attributes["arrays"])
    blocks = sorted({name.block for name in names if name.kind in OF_BLOCKS and name.block is not None})

    def has(kind: str) -> bool:
        return all(source.describes(kind) for source in (training, test))

    if head == POOLING:
        n_blocks = training.store.n_blocks
        return ([n_blocks - 1] if n_blocks else blocks[-1:]) if has("pooled") else []
    readable = []
    for block in blocks:
        aggregator = make_aggregator(head, training.dim, training.n_patches, blocks=[block])
        aggregator.use_vectors(has)
        if all(map(has, aggregator.reads)):
            readable.append(block)
    return readable


def _no_block_error(heads: str, training: Source, test: Source) -> StoreError:
    return StoreError(
        f"{training.store.where} and {test.store.where} have no block in common that {heads} can read; add the vectors of all "
        "blocks to both: beyondcls extract --extend --vectors all with the options that the sets were made with"
    )
