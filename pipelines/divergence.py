"""`beyondcls divergence`: how differently the heads of one encoder weight the patches of the same images."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.process.command_log import recorded_command
from store import BeyondClsError

if TYPE_CHECKING:
    import numpy as np

CLS_ATTENTION = "[cls] attention"  # the stored one, if no probed head uses it


def main(
    probes: Annotated[
        list[Path], typer.Option(help="folder that holds HEAD/trained/weights.npy of one encoder; may be repeated")
    ],
    out: Annotated[Path, typer.Option(help="folder for tables")],
    attention: Annotated[
        Path | None,
        typer.Option(help="folder of the encoder's cls_map.npy, compared too if no head of the folders weights by it"),
    ] = None,
) -> None:
    """Compare where heads look on the same test images (Fig. 7): KL(p || q) in nats of each pair, in both directions.

    Weights are means over seeds. Writes divergence.csv (from p, to q, mean and std over images, n_images, and n_infinite: those
    left out of the mean, as q gives no weight to a patch that p weights), entropy.csv (head, mean and std over images of the
    entropy of its weights, nats) and summary.json.
    """
    import csv
    from dataclasses import asdict
    from itertools import permutations

    import torch

    from probe.divergence import kl_divergence
    from probe.metrics import weight_entropy
    from probe.result_files import result_folder

    heads = weights_of_heads(probes)
    result = result_folder(out, heads[0].encoder, mark="summary.json")
    if attention is not None and not any(head.is_cls_attention for head in heads):
        heads += cls_map(attention, heads[0])
    pairs = [{"from": p.name, "to": q.name, **asdict(kl_divergence(p.weights, q.weights))} for p, q in permutations(heads, 2)]
    of_images = {head.name: weight_entropy(torch.from_numpy(head.weights)) for head in heads}
    entropies = [{"head": n, "mean": e.mean().item(), "std": e.std(correction=0).item()} for n, e in of_images.items()]
    summary = {
        "encoder": heads[0].encoder,
        "key": heads[0].key,
        "n_images": heads[0].weights.shape[0],
        "n_tokens": heads[0].weights.shape[1],
        "heads": [head.name for head in heads],
        "command": recorded_command(),
    }
    with result.written() as folder:
        columns = ("from", "to", "mean", "std", "n_images", "n_infinite")
        for file, names, rows in (("divergence.csv", columns, pairs), ("entropy.csv", ("head", "mean", "std"), entropies)):
            with (folder / file).open("w", newline="", encoding="utf-8") as target:
                writer = csv.DictWriter(target, names)
                writer.writeheader()
                writer.writerows(rows)
        (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"{out}: {len(pairs)} divergences between {len(heads)} heads of {heads[0].encoder}")


@dataclass(frozen=True)
class Weights:
    """A head's weights over the patches of the test images, means over seeds; each row sums to 1."""

    name: str
    folder: Path
    encoder: str
    key: str  # of the test images' feature set
    is_cls_attention: bool
    weights: "np.ndarray"  # [N, T] float64


def weights_of_heads(folders: list[Path]) -> list[Weights]:
    """All heads with weights, of all folders; one that is in several counts once.

    Raises:
        BeyondClsError: a folder without weights, heads of other images, or different heads of one name.
    """
    import numpy as np

    heads: dict[str, Weights] = {}
    for folder in folders:
        files = sorted(folder.glob("*/trained/weights.npy"))
        if not files:
            raise BeyondClsError(
                f"there are no weights under {str(folder)!r}, expected {folder}/HEAD/trained/weights.npy; run `beyondcls "
                "probe` with heads that weight patches and --out this folder, or leave it out"
            )
        for file in files:
            place = file.parent.parent
            head = Weights(place.name, place, *_identify(place / "metrics.json"), _read(file, str(place)))
            _check_same_images(next(iter(heads.values()), head), head)
            other = heads.setdefault(head.name, head)
            if not np.array_equal(other.weights, head.weights):
                raise BeyondClsError(
                    f"{head.folder} and {other.folder} have different weights, expected one head of each name; rename one"
                )
    return list(heads.values())


def cls_map(attention: Path, reference: Weights) -> list[Weights]:
    """The [cls] attention of a block, if it was kept, as a head's weights.

    Raises:
        BeyondClsError: there is no such folder, or it is of other images than `reference`.
    """
    if not (attention / "summary.json").is_file():
        raise BeyondClsError(
            f"there is no {attention / 'summary.json'}, expected what `beyondcls attention --out {attention}` writes; "
            "run it first"
        )
    if not (file := attention / "maps/cls_map.npy").is_file():
        typer.echo(f"{attention} has no cls_map.npy: the encoder has no [cls], or its maps were not stored")
        return []
    head = Weights(CLS_ATTENTION, attention, *_identify(attention / "summary.json"), _read(file, str(attention)))
    _check_same_images(reference, head)
    return [head]


def _identify(file: Path) -> tuple[str, str, bool]:
    """Encoder, key of the test images, and whether weights are its own [cls] attention: of a head's or attention's summary."""
    from probe.result_files import ResultError, read_result

    try:
        if file.name == "summary.json":
            content = json.loads(file.read_text(encoding="utf-8"))
            return content["encoder"], content["key"], True
        content = read_result(file)
        is_own_map = content["aggregator"] == "cls-attention" and content["options"].get("of", "own") == "own"
        return content["encoder"], content["features"]["test"], is_own_map and "top_k" not in content["options"]
    except ResultError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise BeyondClsError(
            f"{file} is missing or damaged ({error!r}), expected the encoder and the images that it is of; run its stage again"
        ) from error


def _read(file: Path, name: str) -> "np.ndarray":
    from probe.divergence import distributions
    from probe.result_files import array_of

    return distributions(array_of(file, "an array [N, T]; run its stage again"), name)


def _check_same_images(first: Weights, second: Weights) -> None:
    """Refuse heads that did not see the same images."""
    if first.key != second.key:
        raise BeyondClsError(
            f"{first.folder} is of the feature set {first.key} and {second.folder} of {second.key}, expected one; "
            "give heads of one encoder that were tested on the same images"
        )
    if first.weights.shape != second.weights.shape:
        shapes = [" x ".join(map(str, head.weights.shape)) for head in (first, second)]
        raise BeyondClsError(
            f"the weights of {first.folder} are {shapes[0]} (images x patches) and those of {second.folder} {shapes[1]}, "
            "expected the same; probe both with the same --test and --joined-test, or leave one out"
        )
