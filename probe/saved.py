"""Trained heads on disk: parameters as safetensors, everything else as JSON beside them. Loading never runs code."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from probe.aggregators import make_aggregator
from probe.head import Head
from probe.train import Recipe, Trained
from store import BeyondClsError

FORMAT_VERSION = 1


def save_probe(
    path: Path,
    trained: Trained,
    aggregator: str,
    options: dict[str, Any],
    dim: int,
    n_classes: int,
    recipe: Recipe,
    keys: dict[str, str],
) -> None:
    """Write `path`.safetensors and `path`.json. `keys`: of the feature sets it was trained and tested on."""
    state = {name: value.detach().cpu().contiguous() for name, value in trained.head.state_dict().items()}
    save_file(state, path.with_suffix(".safetensors"))
    described = {
        "format_version": FORMAT_VERSION,
        "aggregator": aggregator,
        "options": options,
        "dim": dim,
        "n_classes": n_classes,
        "seed": trained.seed,
        "recipe": asdict(recipe),
        "features": keys,
        "result": trained.result,
    }
    path.with_suffix(".json").write_text(json.dumps(described, indent=1) + "\n")


def load_probe(path: str | Path) -> Head:
    """A trained head, in evaluation mode, from tokens to logits and weights.

    Args:
        path: of either file, or their common stem.

    Raises:
        BeyondClsError: a file is missing, damaged or of another format version, or the two do not fit each other.
    """
    stem = Path(path)
    if stem.suffix in (".json", ".safetensors"):
        stem = stem.with_suffix("")
    description, parameters = stem.with_suffix(".json"), stem.with_suffix(".safetensors")
    for file in (description, parameters):
        if not file.is_file():
            raise BeyondClsError(f"there is no probe {str(file)!r}; `beyondcls probe --out` writes one per seed")
    try:
        described = json.loads(description.read_text())
        version = described["format_version"]
        if version != FORMAT_VERSION:
            raise BeyondClsError(
                f"{description} has format version {version}, expected {FORMAT_VERSION}; train the probe again"
            )
        dim, n_classes = int(described["dim"]), int(described["n_classes"])
        head = Head(make_aggregator(described["aggregator"], dim, **described["options"]), dim, n_classes)
        head.load_state_dict(load_file(parameters), strict=True)
    except BeyondClsError:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise BeyondClsError(f"{stem} is no readable probe ({type(error).__name__}: {reason}); train it again") from error
    return head.eval()
