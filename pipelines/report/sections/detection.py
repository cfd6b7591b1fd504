"""Objects and their masks, detected from patch tokens: AP by size, with Table 5 of the paper's first version."""

from collections.abc import Sequence
from functools import partial

from pipelines.report.collect import Inputs
from pipelines.report.content import Block, Section, Table, Text, section_of
from pipelines.report.dense import AGAINST_TWIN, KINDS, MEASURES, against_twin, counts, each_dataset, minus
from pipelines.report.galleries.predictions import objects
from pipelines.report.measured import Entries
from pipelines.report.published.printed import printed_table
from pipelines.report.tables import differences, each, encoders, pairs, spreads, table, texts
from store.format.pretraining import JOINT, LABELS, MASKED

SIZES = ("large", "medium", "small")
ABOUT = (
    "Without training the encoder: Mask R-CNN over a pyramid of the patch tokens of one block. Average precision (AP) is "
    "COCO's, at the pixels of the originals: objects that a crop does not show count as missed."
)
AP = (
    "Average precision, percent (small: below 32 x 32 pixels, large: from 96 x 96 on), mean over IoU 0.5 to 0.95 and "
    f"classes. Bold: the highest of a column; ±: over seeds. A dash: no object has that size. {AGAINST_TWIN}"
)
FAMILIES = (
    "Box AP of encoders of other families minus that of masked ones, points. A dash: no object has that size. In the paper "
    "DINO's boxes are ahead of MAE's at all sizes (Table 5 of v1)."
)
HOW = "How detectors were trained, and what they are built from. Options that were given with a preset win."


def section(inputs: Inputs) -> Section | None:
    """Tables and pictures for each data set; None where nothing was detected."""
    if not inputs.detection:
        return None
    blocks = each_dataset("detection", inputs.detection, partial(_blocks_of_dataset, inputs))
    of_paper = (printed_table("table-5-v1"), printed_table("table-5-v1-differing"))
    return section_of("detection", "Which objects are found", Text(ABOUT), *blocks, *of_paper)


def _blocks_of_dataset(inputs: Inputs, dataset: str, name: str, results: Sequence[Entries]) -> list[Block]:
    tables = [_encoder_table(dataset, name, results, kind) for kind in KINDS if any(kind in one for one in results)]
    settings = table(
        f"{name}-settings",
        f"{dataset}: how detectors were trained",
        HOW,
        results,
        encoders(),
        texts("preset", "Preset", lambda one: one.get("preset")),
        texts("recipe", "Recipe", lambda one: pairs(one.recipe)),
        texts("detector", "Detector", lambda one: pairs(one.detector)),
        texts("patches", "Patches", lambda one: " x ".join(map(str, one.grid))),
        texts("seeds", "Seeds", lambda one: ", ".join(map(str, one.seeds))),
        counts("n_parameters", "Parameters", lambda one: one.n_parameters),
        counts("n_training", "Training images", lambda one: one.n_training),
        counts("n_test", "Test images", lambda one: one.n_test, apart=True),
        each(SIZES, lambda s: counts(f"n_{s}", f"Objects in them, {s}", lambda one: one.objects.test.objects[s])),
        folded=True,
    )
    return [*tables, _family_table(dataset, name, results), settings, *objects(inputs, dataset, name, results)]


def _encoder_table(dataset: str, name: str, results: Sequence[Entries], kind: str) -> Table:
    """AP of boxes, or of masks."""
    return table(
        f"{name}-{kind}",
        f"{dataset}: {KINDS[kind]}",
        AP,
        results,
        encoders(),
        each(
            MEASURES,
            lambda m: spreads(
                f"{kind}_{m}",
                f"{kind.capitalize()} {MEASURES[m]}",
                lambda one: one.get(kind, {}).get(m),
                best="column",
                apart=m == "ap_large",
            ),
        ),
        against_twin(results, {f"{kind}_ap": ("AP", lambda one: one.get(kind, {}).get("ap"))}),
    )


def _family_table(dataset: str, name: str, results: Sequence[Entries]) -> Table:
    """Box AP by size of encoders of other families against masked ones; no rows without such encoders."""
    masked = [one for one in results if one.pretraining.family == MASKED]
    families = {JOINT: "joint embedding", LABELS: "labels"}
    rows = [(one, other) for family in families for one in results if one.pretraining.family == family for other in masked]
    return table(
        f"{name}-families",
        f"{dataset}: boxes by family",
        FAMILIES,
        rows,
        texts("encoder", "Encoder", lambda row: row[0].encoder),
        texts("family", "Pretraining", lambda row: families[row[0].pretraining.family]),
        texts("against", "Against", lambda row: row[1].encoder),
        each(
            SIZES,
            lambda s: differences(
                f"box_ap_{s}", f"AP, {s}", lambda row: minus(lambda one: one.box[f"ap_{s}"], *row), apart=True
            ),
        ),
    )
