"""The page: one HTML file that needs no network and no script."""

import jinja2

from pipelines.report import published
from pipelines.report.collect import Inputs
from pipelines.report.figures import curve_figures, looks, statistics_figures
from pipelines.report.findings import caution, findings, warnings
from pipelines.report.overlays import Overlays
from pipelines.report.provenance import revision, sources, trainings, versions
from pipelines.report.tables import accuracy_rows, signed, title


def render(inputs: Inputs, overlays: Overlays) -> str:
    """The page as text. The template escapes every string except our own SVG and style sheet."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"title": title, "signed": signed}
    return environment.get_template("page.html.jinja").render(
        inputs=inputs,
        findings=findings(inputs),
        caution=caution(inputs),
        warnings=warnings(inputs),
        rows=accuracy_rows(inputs),
        published=published,
        statistics=statistics_figures(inputs),
        encoder_looks=looks(inputs.encoders),
        curves=curve_figures(inputs),
        head_looks=looks(inputs.heads),
        overlays=overlays,
        trainings=trainings(inputs),
        sources=sources(inputs),
        versions=versions(),
        revision=revision(),
    )
