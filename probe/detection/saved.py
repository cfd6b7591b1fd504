"""Trained detectors on disk: parameters as safetensors, everything else as JSON beside them. Loading never runs code."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from probe.described import made
from probe.detection.detector import Detector
from probe.detection.options import DetectorOptions
from probe.head import FinalNorm
from store import BeyondClsError
from store.errors import first_line, other_version

FORMAT_VERSION, TASK = 1, "detection"


def save_detector(path: Path, detector: Detector, about: dict[str, Any]) -> None:
    """Write `path`.safetensors and `path`.json.

    Args:
        about: the encoder, the classes, how it was trained, its results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: values.detach().cpu().contiguous() for name, values in detector.state_dict().items()}
    save_file(state, path.with_name(f"{path.name}.safetensors"))
    described = {
        "format_version": FORMAT_VERSION,
        "task": TASK,
        "detector": detector.options.to_dict(),
        "dim": detector.dim,
        "grid": list(detector.grid),
        "n_classes": detector.n_classes,
        "final_norm_eps": None if detector.final_norm is None else detector.final_norm.eps,
        **about,
    }
    path.with_name(f"{path.name}.json").write_text(json.dumps(described, indent=1) + "\n")


def load_detector(path: str | Path) -> Detector:
    """A trained detector in evaluation mode, from patch tokens [B, T, D] to detections (`Detector`).

        detector = load_detector("detection/mae/trained/seed0")

    Args:
        path: of either file, or their common stem.

    Raises:
        BeyondClsError: a file is missing, damaged or of another format version, or the two do not fit each other.
    """
    return load_detector_with(path)[0]


def load_detector_with(path: str | Path) -> tuple[Detector, dict[str, Any]]:
    """`load_detector`, and the content of the JSON file.

    Raises:
        BeyondClsError: as `load_detector`.
    """
    stem = Path(path)
    if stem.suffix in (".json", ".safetensors"):
        stem = stem.with_suffix("")
    description, parameters = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("json", "safetensors"))
    for file in (description, parameters):
        if not file.is_file():
            raise BeyondClsError(f"there is no detector {str(file)!r}; `beyondcls detect --out` writes one per seed")
    try:
        described = json.loads(description.read_text())
        if described.get("task") != TASK:
            raise BeyondClsError(f"{description} describes no detector; name what `beyondcls detect --out` wrote into trained/")
        if (version := described["format_version"]) != FORMAT_VERSION:
            raise BeyondClsError(other_version(description, version, FORMAT_VERSION, "train it again"))
        dim, eps = int(described["dim"]), described["final_norm_eps"]
        rows, columns = (int(n) for n in described["grid"])
        options, n_classes = DetectorOptions.from_dict(described["detector"]), int(described["n_classes"])

        def build() -> Detector:
            return Detector(dim, (rows, columns), n_classes, options, FinalNorm.saved_with(parameters, dim, eps))

        detector = made(build, parameters, dim, n_classes)
        detector.load_state_dict(load_file(parameters), strict=True)
    except BeyondClsError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError, SafetensorError) as error:
        reason = first_line(error)
        raise BeyondClsError(f"{stem} is not a readable detector ({type(error).__name__}: {reason}); train it again") from error
    return detector.eval(), described
