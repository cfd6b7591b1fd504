"""What a finding says."""

from pipelines.doctor.finding import Finding


def says(finding: Finding | None, state: str, *words: str) -> None:
    """It is in this state, and its line, with the remedy behind an arrow, has all of these words."""
    assert finding is not None
    assert finding.state == state, finding
    line = f"{finding.found} → {finding.remedy}"
    assert [part for part in words if part not in line] == [], line
    assert bool(finding.remedy) or state == "ok", finding
