"""Which head does best on each encoder."""

from pipelines.report.collect import Inputs
from pipelines.report.content import Section
from pipelines.report.tables import encoders, heads, spreads, table


def section(inputs: Inputs) -> Section:
    """A row for each encoder that was probed."""
    probed = dict.fromkeys(encoder for encoder, _ in inputs.probes)
    best = table(
        "best-heads",
        "Best head",
        "The highest mean over seeds on the test images.",
        [max(inputs.probes_of(encoder), key=lambda probe: probe.score.mean) for encoder in probed],
        encoders(),
        heads(),
        spreads("top1", "Top-1, %", lambda probe: probe.score),
    )
    return Section("best-heads", "Best heads", (best,))
