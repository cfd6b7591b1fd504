"""Probes of studies as `collect` reads them, without files."""

from pathlib import Path

from pipelines.report.collect import Inputs
from pipelines.report.measured import Attention, Measure, Probe
from tests.pipelines.report.written import pretraining_of

RECIPE = {"epochs": 4, "batch_size": 128, "optimiser": "sgd", "base_lr": 0.03}


def measure(mean: float, std: float = 0.5, n: int = 3) -> Measure:
    return Measure(mean, std if n > 1 else 0.0, (mean,) * n)


def studied(encoder: str, head: str, top1: float, aggregator: str = "abmilp", **more) -> Probe:
    """`more`: options of the aggregator, and std, n_seeds, parameters, flops, recipe, entropy."""
    std, n_seeds = more.pop("std", 0.5), more.pop("n_seeds", 3)
    cost = {"parameters": more.pop("parameters", 193), "parameters_classifier": 1930}
    cost["flops_per_image"] = more.pop("flops", 53_000)
    entropy = {"entropy": measure(more.pop("entropy"))} if "entropy" in more else {}
    return Probe(
        encoder=encoder,
        head=head,
        recorded_encoder=encoder,
        recipe=more.pop("recipe", RECIPE),
        options=more,
        measures={"top1": measure(top1, std, n_seeds), **entropy},
        n_training=5000,
        n_test=1000,
        n_tokens=64,
        n_classes=10,
        seeds=tuple(range(n_seeds)),
        features={"training": "a", "test": "b"},
        selected="nothing",
        aggregator=aggregator,
        cost=cost,
        pretraining=pretraining_of(encoder),
    )


def inputs(study: str, *probes: Probe, main: tuple[Probe, ...] = (), attention: tuple[Attention, ...] = ()) -> Inputs:
    studies = {study: {(p.encoder, p.head): p for p in probes}} if probes else {}
    return Inputs({(p.encoder, p.head): p for p in main}, {a.encoder: a for a in attention}, studies)


def attention_of(encoder: str, statistics: dict, cls_map: Path | None = None) -> Attention:
    about = {"key": "key", "data": "data", "n_images": 10, "n_tokens": 49, "architecture": {}}
    return Attention(about, encoder=encoder, statistics=statistics, cls_map=cls_map)
