"""How good is a frozen ViT's representation, and why.

The public names, imported when they are first used: probing needs no timm, extraction no scikit-learn.

    store = beyondcls.open_store("features/quickstart-mae-cifar10-test")
    patch = store.tokens("patch").rows([0, 1, 2])            # [3, 64, 192] float16
    head = beyondcls.load_probe("probes/cifar10/quickstart-mae/abmilp/trained/seed0")
    model = beyondcls.online("quickstart-mae", "probes/cifar10/quickstart-mae/abmilp/trained/seed0")  # images to logits
"""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extract.datasets import open_images
    from extract.encoders import ENCODERS, load_encoder
    from extract.encoders.encoder import Encoder
    from extract.encoders.wrapped import wrap
    from extract.requests import Request
    from extract.run import create, extend, extract, repair, update
    from extract.writing import Settings
    from pipelines.live.detections import online_detector
    from pipelines.live.online import online
    from pipelines.probing.loop import EncoderLoop
    from pipelines.process.progress import progress_bar
    from pipelines.report.read_results import read_results, read_rows
    from pipelines.sharing.places import open_features
    from probe.aggregators import AGGREGATORS, AbMILP, Aggregator, Average, Cls, Pooled
    from probe.closed import CLOSED, make_closed
    from probe.detection.detector import load_detector
    from probe.estimator import ProbeClassifier
    from probe.geometry import measure
    from probe.grid import Epoch, HeadPlan, HeadSpec
    from probe.pooling import softmax_pool
    from probe.recipe import PRESETS, Recipe, make_recipe
    from probe.run import probe
    from probe.saved import load_probe
    from probe.score import score
    from probe.subsets import hold_out, k_shot, percentage
    from store import BeyondClsError, FeatureStore, Loader, open_store, read_ids, rows_of_ids
    from store.errors import BeyondClsWarning
    from store.moving.receipt import Receipt
    from store.moving.transfer import pull, upload

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as in store, also where torch is imported before anything of that

# Common words, which packages of other origins may bear.
PACKAGES = ("extract", "pipelines", "probe", "store")
_HOME = {
    "AGGREGATORS": "probe.aggregators",
    "AbMILP": "probe.aggregators",
    "Aggregator": "probe.aggregators",
    "Average": "probe.aggregators",
    "BeyondClsError": "store",
    "BeyondClsWarning": "store.errors",
    "CLOSED": "probe.closed",
    "Cls": "probe.aggregators",
    "ENCODERS": "extract.encoders",
    "Encoder": "extract.encoders.encoder",
    "EncoderLoop": "pipelines.probing.loop",
    "Epoch": "probe.grid",
    "FeatureStore": "store",
    "HeadPlan": "probe.grid",
    "HeadSpec": "probe.grid",
    "Loader": "store",
    "PRESETS": "probe.recipe",
    "Pooled": "probe.aggregators",
    "ProbeClassifier": "probe.estimator",
    "Receipt": "store.moving.receipt",
    "Recipe": "probe.recipe",
    "Request": "extract.requests",
    "Settings": "extract.writing",
    "create": "extract.run",
    "extend": "extract.run",
    "extract": "extract.run",
    "hold_out": "probe.subsets",
    "k_shot": "probe.subsets",
    "load_detector": "probe.detection.detector",
    "load_encoder": "extract.encoders",
    "load_probe": "probe.saved",
    "make_closed": "probe.closed",
    "make_recipe": "probe.recipe",
    "measure": "probe.geometry",
    "online": "pipelines.live.online",
    "online_detector": "pipelines.live.detections",
    "open_features": "pipelines.sharing.places",
    "open_images": "extract.datasets",
    "open_store": "store",
    "percentage": "probe.subsets",
    "probe": "probe.run",
    "progress_bar": "pipelines.process.progress",
    "pull": "store.moving.transfer",
    "read_ids": "store",
    "read_results": "pipelines.report.read_results",
    "read_rows": "pipelines.report.read_results",
    "repair": "extract.run",
    "rows_of_ids": "store",
    "score": "probe.score",
    "softmax_pool": "probe.pooling",
    "update": "extract.run",
    "upload": "store.moving.transfer",
    "wrap": "extract.encoders.wrapped",
}

__all__ = [
    "AGGREGATORS",
    "CLOSED",
    "ENCODERS",
    "PRESETS",
    "AbMILP",
    "Aggregator",
    "Average",
    "BeyondClsError",
    "BeyondClsWarning",
    "Cls",
    "Encoder",
    "EncoderLoop",
    "Epoch",
    "FeatureStore",
    "HeadPlan",
    "HeadSpec",
    "Loader",
    "Pooled",
    "ProbeClassifier",
    "Receipt",
    "Recipe",
    "Request",
    "Settings",
    "create",
    "extend",
    "extract",
    "hold_out",
    "k_shot",
    "load_detector",
    "load_encoder",
    "load_probe",
    "make_closed",
    "make_recipe",
    "measure",
    "online",
    "online_detector",
    "open_features",
    "open_images",
    "open_store",
    "percentage",
    "probe",
    "progress_bar",
    "pull",
    "read_ids",
    "read_results",
    "read_rows",
    "repair",
    "rows_of_ids",
    "score",
    "softmax_pool",
    "update",
    "upload",
    "wrap",
]


def _check_packages() -> None:
    """Packages are imported by these names wherever they are used, so all have to be those that were installed with this one.

    Raises:
        ImportError: Python finds another one first, or none.
    """
    folder = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        spec = find_spec(name)
        file = "nothing" if spec is None else spec.origin or ", ".join(spec.submodule_search_locations or ())
        if Path(file).resolve().parent.parent != folder:
            raise ImportError(
                f"beyondcls has a package {name!r} in {folder}, but under this name Python finds {file}; install beyondcls in "
                "an environment of its own (python -m venv), and don't call a file or a folder of your project so"
            )


_check_packages()


def run() -> None:
    """The command line, once it is known whose packages it would import.

    No process that it starts imports from the folder that it is started in, as it does not itself.
    """
    from pipelines.cli import run

    os.environ["PYTHONSAFEPATH"] = "1"
    run()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # as long as all else here takes

        return version("beyondcls")
    if name not in _HOME:
        raise AttributeError(f"module 'beyondcls' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
