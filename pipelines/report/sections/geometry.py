"""What vectors tell without a head, and which of these numbers, or of attention's, go with what aggregators gain over [cls]."""

from collections.abc import Iterator, Mapping

import matplotlib
from matplotlib.figure import Figure as Plot
from matplotlib.ticker import MaxNLocator

from pipelines.report.collect import Inputs
from pipelines.report.content import Cell, Figure, Figures, Look, Section, Table, Text
from pipelines.report.dense import result_of
from pipelines.report.drawing import STYLE, colour, drawn, looks
from pipelines.report.estimate import of_measure
from pipelines.report.measured import Entries, Measure
from pipelines.report.predictors import MEASURES, numbers_of, over_blocks, over_encoders
from pipelines.report.reading import files_in
from pipelines.report.tables import NOTHING, DeclaredColumn, cells, each, encoders, file_names, numbers, table, texts, title

DRAWN = ("rankme", "two_nn")  # by block
ALIKE = {"debiased_cka": "CKA, debiased", "mutual_knn": "mutual k-NN"}
ABOUT = "Vectors of test images by themselves: no head is trained, and labels serve the last five measures alone."
NOTE = (
    "RankMe and participation ratio: directions that vectors use. α-ReQ: how fast the spectrum falls. Dimensions: of the "
    "manifold around each image. LiDAR: directions in which images differ more than their views. Brackets: 95 % over test "
    "images."
)
SIMILARITY = (
    "Vectors of the last block of each, of the same test images: 1 is alike, and about 0 where nothing is shared. Mutual "
    "k-NN: the share of the 10 nearest images that both have in common. Brackets: 95 % over test images. A dash: not compared."
)
NORMS = (
    "Patch tokens of test images whose norm is above so many times the block's median, in the last block and, if it is "
    "another one of those that are kept, where they are most. Attention of [cls] and weight of AbMILP: how many times as much "
    "an outlier draws as a patch does on average; a dash where there are no outliers, or it was not measured. Brackets: 95 % "
    "over test images."
)


def section(inputs: Inputs) -> Section | None:
    """None where none of `beyondcls geometry`, `similarity` and `norms` was run."""
    results, norms = inputs.results("geometry"), inputs.results("norms")
    similarity = _similarity_table(inputs)
    if not (results or norms or similarity.rows):
        return None
    tried = numbers_of(inputs, results, norms)
    blocks = (_deepest_table(results), _figures(inputs, results), _block_table(results), similarity, _norms_table(norms))
    gains = (over_encoders(inputs, tried), over_blocks(inputs, tried))
    kept = (block for block in (*blocks, *gains) if (block.figures if isinstance(block, Figures) else block.rows))
    return Section("geometry", "Without a head", (Text(ABOUT), *kept))


def _deepest_table(results: list[Entries]) -> Table:
    rows = [(one, vector) for one in results for vector in of_deepest(one)]
    return table("geometry", "Vectors of the deepest block", NOTE, rows, *_columns(rows))


def _block_table(results: list[Entries]) -> Table:
    rows = [(one, vector) for one in results for vector in one.vectors]
    rows = rows if any(len(one.vectors) > len(of_deepest(one)) for one in results) else []
    block = numbers("block", "Block", lambda row: row[1].block, 0)
    return table("geometry-blocks", "Vectors of every block", NOTE, rows, *_columns(rows, block), folded=True)


def _columns(rows: list[tuple[Entries, Entries]], *others: DeclaredColumn) -> Iterator[DeclaredColumn]:
    yield encoders(lambda row: row[0])
    yield texts("vector", "Vector", lambda row: title(row[1].vector))
    yield from others
    measured = [name for name in MEASURES if any(name in vector for _, vector in rows)]
    yield from each(measured, lambda name: cells(name, heading(name), lambda row: cell_of(row[1].get(name), MEASURES[name][1])))


def heading(name: str) -> str:
    """The title of one of MEASURES, as it begins a column."""
    words = MEASURES[name][0]
    return words[0].upper() + words[1:] if words[0].isascii() else words


def cell_of(measure: Measure | None, digits: int, seeds: str | None = None) -> Cell:
    """`59.0 [57.8, 60.2]`, over images and, of what has `seeds`, over these.

    Without an interval where it is the same without any of the images, such as a share of 0.
    """
    if measure is None:
        return NOTHING
    low, high = of_measure(measure, "", seeds).interval or (0.0, 0.0)
    between = f" [{low:.{digits}f}, {high:.{digits}f}]" if low < high else ""
    return Cell(f"{measure.mean:.{digits}f}{between}", measure.mean)


def of_deepest(one: Entries) -> list[Entries]:
    """The last vector of each kind."""
    return list({vector.vector: vector for vector in one.vectors}.values())


def _figures(inputs: Inputs, results: list[Entries]) -> Figures:
    """A plot for each kind of vector and each of DRAWN, where sets hold several blocks."""
    by_encoder, figures = looks(inputs.encoders, inputs.untrained), []
    kinds = dict.fromkeys(vector.vector for one in results for vector in one.vectors)
    names = {(kind, name): f"{MEASURES[name][0]}, {title(kind)}" for name in DRAWN for kind in kinds}
    files = file_names("geometry", list(names.values()))
    for (kind, name), words in names.items():
        of_kind = {one.encoder: [v for v in one.vectors if v.vector == kind and name in v] for one in results}
        series = {encoder: {v.block: v[name] for v in rows} for encoder, rows in of_kind.items() if len(rows) > 1}
        if series:
            figures.append(_figure(files[words], words, series, MEASURES[name][1], by_encoder))
    return Figures(
        tuple(figures), tuple(look for look in by_encoder.values() if any(f"{look.name}: " in f.alt for f in figures))
    )


def _figure(
    name: str, heading: str, series: Mapping[str, Mapping[int, Measure]], digits: int, by_encoder: Mapping[str, Look]
) -> Figure:
    """A line over the blocks for each encoder."""
    words = "; ".join(
        f"{encoder}: {', '.join(f'{m.mean:.{digits}f} in block {block}' for block, m in by_block.items())}"
        for encoder, by_block in series.items()
    )
    with matplotlib.rc_context(STYLE):
        plot = Plot(figsize=(4.6, 2.4))
        axes = plot.subplots()
        for encoder, by_block in series.items():
            look, means = by_encoder[encoder], [m.mean for m in by_block.values()]
            bounds = [of_measure(m, "", None).interval or (m.mean, m.mean) for m in by_block.values()]
            reach = [high - mean for (_, high), mean in zip(bounds, means, strict=True)]
            axes.errorbar(list(by_block), means, reach, color=colour(look), linestyle=look.dash, marker=look.marker)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="block, counted from 0", ylabel=heading)
    return drawn(
        plot,
        name,
        heading,
        "Bars: 95 % over test images.",
        f"{heading}, by block. {words}.",
        map(by_encoder.__getitem__, series),
    )


def _similarity_table(inputs: Inputs) -> Table:
    """A row for each measure, kind of vector and encoder, a column for each encoder."""
    found: dict[tuple[str, str], dict[tuple[str, str], Measure]] = {}
    for one in (result_of(file, "similarity") for file in files_in(inputs.folders.similarity, "*/metrics.json")):
        last: dict[tuple[str, str], int] = {}
        for side in (side for pair in one.pairs for side in (pair.a, pair.b)):
            last[side.encoder, side.vector] = max(last.get((side.encoder, side.vector), -1), _place(side))
        for a, b, pair in ((pair.a, pair.b, pair) for pair in one.pairs if pair.a.vector == pair.b.vector):
            if a.encoder != b.encoder and all(_place(side) == last[side.encoder, side.vector] for side in (a, b)):
                for measure in (name for name in ALIKE if name in pair):
                    of_both = found.setdefault((measure, a.vector), {})
                    of_both[a.encoder, b.encoder] = of_both[b.encoder, a.encoder] = pair[measure]
    compared = [
        name for name in inputs.encoders if any((name, other) in of for of in found.values() for other in inputs.encoders)
    ]
    names = file_names("with", compared)
    return table(
        "similarity",
        "How alike encoders are",
        SIMILARITY,
        [(encoder, *key) for key in sorted(found) for encoder in compared],
        encoders(lambda row: row[0], inputs.untrained),
        texts("measure", "Measure", lambda row: ALIKE[row[1]]),
        texts("vector", "Vector", lambda row: title(row[2])),
        each(
            compared,
            lambda other: cells(
                names[other].replace("-", "_"), other, lambda row: cell_of(found[row[1:]].get((row[0], other)), 2)
            ),
            apart=True,
        ),
    )


def _place(side: Entries) -> int:
    return -1 if side.block is None else int(side.block)


def _norms_table(norms: list[Entries]) -> Table:
    """A row for the last block of each encoder, and one for the block with most outliers."""
    rows = []
    for one in norms:
        most = max(one.blocks, key=lambda block: block.share.mean)
        rows += [(one, block) for block in one.blocks if block is most or block is one.blocks[-1]]
    of_block = {
        "share": ("Outliers, %", "share", 2),
        "images": ("Images with one, %", "images", 1),
        "attention": ("Attention of [cls], times", "attention", 2),
        "weight": ("Weight of AbMILP, times", "weight of abmilp", 2),
    }
    return table(
        "norms",
        "Patch tokens of high norm",
        NORMS,
        rows,
        encoders(lambda row: row[0]),
        numbers("block", "Block", lambda row: row[1].block, 0),
        numbers("times", "Above, times the median", lambda row: row[0].times, 1),
        each(of_block, lambda n: cells(n, of_block[n][0], lambda row: cell_of(row[1].get(of_block[n][1]), of_block[n][2]))),
    )
