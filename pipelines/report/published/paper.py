"""The paper's results with heads as rows, from its tables; names are those of the registries."""

from collections.abc import Callable

from pipelines.report.published import table_1, table_5, table_6, table_7
from pipelines.report.published.row import PublishedRow

DATASET = "imagenet"
PROTOCOL, PROTOCOL_LARGE, PROTOCOL_SA = "mae-lars", "mae-lars-large", "SGD"  # presets, but for SA-AbMILP (v1, Table 3)
LARGE = ("ViT-L", "ViT-H")  # which are trained for fewer epochs
# Of all of its numbers on ImageNet-1k, and of those of the benchmark beside them.
MEASURED = {"crops": "fresh", "n_training": "1281167", "resolution": "224", "frame": "center 0.875"}
LAST_BLOCK = {"ViT-S": "11", "ViT-B": "11", "ViT-L": "23", "ViT-H": "31"}
# The supervised ViT-B has no name: the paper does not say which one it is.
ENCODERS = {
    ("MAE", "ViT-S"): "mae-s16",
    ("MAE", "ViT-B"): "mae-b16",
    ("MAE", "ViT-L"): "mae-l16",
    ("MAE", "ViT-H"): "mae-h14",
    ("SimMIM", "ViT-B"): "simmim-b16",
    ("MaskFeat", "ViT-B"): "maskfeat-b16",
    ("BEiT-v2", "ViT-B"): "beitv2-b16",
    ("I-JEPA", "ViT-H"): "ijepa-h14",
    ("CAPI", "ViT-L"): "capi-l14",
    ("DINO", "ViT-B"): "dino-b16",
    ("MoCo-v3", "ViT-B"): "mocov3-b16",
    ("iBOT", "ViT-B"): "ibot-b16",
    ("MAE (fine-tuned)", "ViT-B"): "mae-ft-b16",
    ("Supervised", "ViT-B"): "supervised-b16",
}
# Heads of Table 6, as params.yaml names such heads: the attention of another encoder is called by that encoder.
TABLE_6_HEADS = {"cls-attention, of joined": "dino-attention"}


def paper_rows(*tables: str) -> tuple[PublishedRow, ...]:
    """Some of `TABLES`, all by default; a number that several tables print appears once, with the first of them."""
    first: dict[tuple[str, str, str, float], PublishedRow] = {}
    for row in (row for table in tables or TABLES for row in TABLES[table]()):
        first.setdefault((row.encoder, row.head, row.metric, row.value), row)
    return tuple(first.values())


def _row(encoder: tuple[str, str], head: str, value: float, source: str, **others: str) -> PublishedRow:
    protocol = PROTOCOL_LARGE if encoder[1] in LARGE else PROTOCOL
    values = {"protocol": protocol, "metric": "top1", **MEASURED, "block": LAST_BLOCK[encoder[1]], **others}
    return PublishedRow(ENCODERS[encoder], DATASET, head, value=value, source=source, **values)


def _table_1() -> list[PublishedRow]:
    return [
        _row((row.encoder, row.vit), head, value, table_1.SOURCE, note=f"{row.encoder}, {row.vit}")
        for row in table_1.TABLE_1
        for head, value in (("cls", row.cls), ("average", row.average), ("abmilp", row.abmilp))
        if value is not None
    ]


def _table_5() -> list[PublishedRow]:
    """Variants of AbMILP; those of v1 have two decimals."""
    rows = []
    for table, source in ((table_5.TABLE_5, table_5.SOURCE), (table_5.TABLE_3_V1, table_5.SOURCE_V1)):
        for row in table:
            activation = row.activation.lower()
            options = " ".join([f"depth={row.depth}", *([f"activation={activation}"] if activation else [])])
            head = "sa-abmilp" if row.self_attention else f"abmilp-{row.depth}-{activation}" if activation else "abmilp"
            others = {"protocol": PROTOCOL_SA} if row.self_attention else {"aggregator": "abmilp", "options": options}
            rows.append(_row(("MAE", "ViT-B"), head, row.accuracy, source, **others))
    return rows


def _table_6() -> list[PublishedRow]:
    return [
        _row(
            ("MAE", "ViT-B"), TABLE_6_HEADS.get(row.aggregator, row.aggregator), value, table_6.SOURCE, metric=metric, note=note
        )
        for row in table_6.TABLE_6
        for metric, value, note in (
            ("top1", row.top1, row.approach),
            ("entropy", row.entropy, f"{row.approach}; nats, over 196 patches"),
        )
    ]


def _table_7() -> list[PublishedRow]:
    return [
        _row((row.encoder, row.vit), head, value, table_7.SOURCE, note=f"{row.encoder}, {row.vit}", **form)
        for row in table_7.TABLE_7
        for head, value, form in (
            ("abmilp", row.abmilp, {}),
            ("ap-1", row.ap_1, {"aggregator": "ap", "options": "heads=1"}),
            ("ap-12", row.ap_12, {"aggregator": "ap", "options": "heads=12"}),
        )
    ]


# Tables of v2; with its Table 5 comes Table 3 of v1.
TABLES: dict[str, Callable[[], list[PublishedRow]]] = {
    "table-1": _table_1,
    "table-5": _table_5,
    "table-6": _table_6,
    "table-7": _table_7,
}
