"""Trained heads on disk."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.aggregators import AGGREGATORS, is_custom
from probe.grid import HeadSpec
from probe.head import FinalNorm, Head
from probe.modules import Kind, files_of, load_module, make_module, save_module, stem_of
from store import BeyondClsError

PROBE = Kind("probe", "beyondcls probe", 2)
TRAINED_IN = ("", "trained", "linear", "logistic")  # folders of what is trained, within that of a run


def save_probe(path: Path, head: Head, spec: HeadSpec, n_patches: int | None, about: dict[str, Any]) -> None:
    """Write `path`.safetensors and `path`.json.

    Args:
        about: how the head was trained and its results; for the reader, loading does not need it.
    """
    plugin = AGGREGATORS.plugin(spec.aggregator)
    package = {} if plugin is None else {"package": plugin.package}
    sizes = {"dim": head.aggregator.dim, "n_patches": n_patches, "n_classes": head.classifier.out_features}
    save_module(path, PROBE, head, {**spec.to_dict(), **package, **sizes, **about})


def load_probe(path: str | Path, own: str | None = None) -> Head:
    """A trained head: a module in evaluation mode, from features to logits [B, K] and weights over patches [B, T] or None.

        head = load_probe("probes/mae/abmilp/trained/seed0")
        logits, weights = head({"patch": patch})

    It is called with a mapping of kinds, those that `head.aggregator.reads` names, to float32 values of B images, as a
    `beyondcls.Loader` gives them: "patch" [B, T, D], "cls" [B, D] and "registers" [B, R, D] of the block that was probed,
    "patch/block5" of another one, always before the encoder's final norm; "attention/cls" and "attention/centre" [B, H, T];
    "pooled" [B, W], what the encoder's own pooling gives; "joined/…" of a second encoder. `beyondcls.online` puts the
    encoder in front.

    It can be exported by `torch.export.export(head, (features,))`.

    Args:
        path: of either file, or their common stem.
        own: FILE.py:CLASS of a head with a custom aggregator: a probe file cannot name code that loading would run.

    Raises:
        BeyondClsError: a file is missing, damaged or of another format version, or the two do not fit each other; or its
            aggregator is of a package that is not installed.
    """
    return load_with(path, own)[0]


def load_with(path: str | Path, own: str | None = None) -> tuple[Head, dict[str, Any]]:
    """`load_probe`, and the content of the JSON file.

    Raises:
        BeyondClsError: as `load_probe`.
    """
    stem = stem_of(path)

    def build(described: dict[str, Any], parameters: Path) -> Head:
        # Its initial parameters no longer matter.
        spec = HeadSpec(*(described[name] for name in ("aggregator", "options", "normalisation", "final_norm")))
        if custom := is_custom(spec.aggregator):
            if own is None or not is_custom(own):
                raise BeyondClsError(
                    f"{stem} has a custom aggregator, {spec.aggregator!r}, which loading does not run; own is {own!r}, "
                    "expected FILE.py:CLASS; if you trust that file, name it: load_probe(path, own='FILE.py:CLASS')"
                )
            spec = replace(spec, aggregator=own)
        AGGREGATORS.check_package(spec.aggregator, described.get("package"), stem)
        dim, n_classes, n_patches = int(described["dim"]), int(described["n_classes"]), described["n_patches"]
        eps = float(described["final_norm_eps"]) if spec.final_norm else None
        make = lambda: spec.build(dim, n_patches, n_classes, FinalNorm.saved_with(parameters, dim, eps))  # noqa: E731
        return make() if custom else make_module(make, parameters, dim, n_classes)

    return load_module(stem, PROBE, build)


def first_seed(path: Path) -> Path:
    """A trained probe's file or stem as it is; for a folder, the lowest seed of the heads or detectors in it.

    Of a folder of `beyondcls segment`, which has several heads, the linear one.

    Raises:
        BeyondClsError: the folder has none.
    """
    if not path.is_dir():
        return path
    for name in TRAINED_IN:
        if files := sorted((path / name).glob("seed*.json"), key=lambda file: (len(file.stem), file.stem)):
            return files[0].with_suffix("")
    raise BeyondClsError(
        f"{str(path)!r} has neither heads nor detectors; expected trained/seed0.json, of `beyondcls probe` or "
        "`beyondcls detect`, or linear/seed0.json or logistic/seed0.json, of `beyondcls segment`"
    )


def task_of(path: str | Path) -> str | None:
    """What the description at a path says that its parameters do: segmentation, detection; None for a probe of images.

    None, too, where there is no readable description; loading it says why.

    Args:
        path: of either file, or their common stem.
    """
    try:
        task = json.loads(files_of(stem_of(path))[0].read_text()).get("task")
    except (OSError, ValueError, AttributeError):
        return None
    return task if isinstance(task, str) else None
