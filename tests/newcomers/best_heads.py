"""Which head does best on each encoder."""

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Column, Row, Section, Table
from pipelines.report.tables import named, spread, title


def section(inputs: Inputs) -> Section:
    """A row for each encoder that was probed."""
    rows = []
    for encoder in dict.fromkeys(encoder for encoder, _ in inputs.probes):
        best = max(inputs.probes_of(encoder), key=lambda probe: probe.measures["top1"].mean)
        drawn, head = best.pretraining.is_untrained, Cell(title(best.head), best.head)
        rows.append(Row((named(encoder, drawn), head, spread(best.measures["top1"])), muted=drawn))
    columns = (Column("encoder", "Encoder", "text"), Column("head", "Head", "text"), Column("top1", "Top-1, %", "spread"))
    note = "The highest mean over seeds on the test images."
    return Section("best-heads", "Best heads", (Table("best-heads", "Best head", note, columns, tuple(rows)),))
