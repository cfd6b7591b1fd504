"""What the other stages wrote, as frozen values: probes by encoder and head, attention by encoder."""

import csv
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from pipelines.report import older
from pipelines.report.published.row import PublishedRow
from store import BeyondClsError
from store.format.pretraining import UNKNOWN, Pretraining

FIRST_HEADS = ("cls", "average", "abmilp")  # the others follow in alphabetical order
MEASURES = ("top5", "entropy", "train_top1", "train_map")  # beside top1 or map, where they were written down
QUARTILES = ("median", "lower_quartile", "upper_quartile")
T = TypeVar("T")


@dataclass(frozen=True)
class Measure:
    """One number over seeds; `std` has n - 1 in the denominator and is 0 for one seed."""

    mean: float
    std: float
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """Training by epoch, each entry the mean over seeds: loss in nats, top-1 in percent."""

    epochs: tuple[int, ...]
    loss: tuple[float, ...]
    top1: tuple[float, ...]


@dataclass(frozen=True)
class BestEpoch:
    """What a head reached on the test images in the epoch in which it was best on them; never its result.

    Attributes:
        measure: over seeds, each in the epoch in which that seed was best; percent.
        epochs: of each seed, counted from 1; the first of equally good ones.
    """

    measure: Measure
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class Probe:
    """One PROBES/ENCODER/HEAD: its metrics.json, its curves, and the file of its weights [N, T] (None without weights)."""

    encoder: str
    head: str
    recorded_encoder: str
    options: Mapping[str, Any]
    measures: Mapping[str, Measure]  # top1 and top5, or map (of several labels), in percent, as train_…; entropy in nats
    n_training: int
    n_test: int
    n_tokens: int | None
    n_classes: int
    seeds: tuple[int, ...]
    recipe: Mapping[str, Any]
    features: Mapping[str, str]  # keys of the feature sets: training, test
    selected: str  # what was selected, by what, on what
    command: str  # that reproduces these numbers; empty if it was not recorded
    curve: Curve | None
    weights: Path | None
    aggregator: str = ""
    crops: int | str | None = None  # random ones of each training image that were shown, or "fresh"; None in older files
    correct: Path | None = None  # correct.npz: which test images each seed classifies correctly, bool [n_seeds, n_test]
    test_images: str | None = None  # digest of the ids of these images; None in metrics of earlier versions
    cost: Mapping[str, int | None] = field(default_factory=dict)  # as `probe.cost.Cost` names it
    timing: Mapping[str, Any] = field(default_factory=dict)  # as `probe.timing.Timing` names it; empty if nothing was measured
    notes: tuple[str, ...] = ()  # sentences that a reader of the numbers should know
    transferred: str | None = None  # key of the training features of the probe whose aggregators these are, if of another
    pretraining: Pretraining = UNKNOWN  # of the encoder
    recorded: Mapping[str, Any] = field(default_factory=dict)  # metrics.json as it is
    best_epoch: BestEpoch | None = None  # None where nothing was measured epoch by epoch
    folder: Path | None = None  # of metrics.json

    @property
    def measure(self) -> str:
        """What counts: "top1", or "map" where images have several labels."""
        return "map" if "map" in self.measures else "top1"

    @property
    def score(self) -> Measure:
        """What counts, percent."""
        return self.measures[self.measure]


@dataclass(frozen=True)
class Attention:
    """One ATTENTION/ENCODER: statistics per block as (mean, std over images), and where its other files are.

    Attributes:
        cls_map: [cls] maps [N, T]; None without [cls] maps.
        heads: the table of statistics per block and attention head; None if it was not written.
        medians: of unbounded statistics, per block (median, lower, upper quartile over images), shown in place of the means;
            empty in files of versions that kept no medians.
        declared: titles and units of the statistics.
        pretraining: of the encoder.
    """

    encoder: str
    key: str
    data: str
    n_images: int
    n_tokens: int | None
    architecture: Mapping[str, Any]
    statistics: Mapping[str, tuple[tuple[float, float], ...]]
    cls_map: Path | None
    heads: Path | None = None
    crops: Path | None = None  # [N, 4] of what its maps show
    medians: Mapping[str, tuple[tuple[float, float, float], ...]] = field(default_factory=dict)
    declared: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    pretraining: Pretraining = UNKNOWN


@dataclass(frozen=True)
class Folders:
    """Where the stages have written, and what the report may draw from. Nothing is read of a folder that is not named.

    Attributes:
        probes: PROBES/ENCODER/HEAD; required. Any of the others may be missing.
        attention: ATTENTION/ENCODER.
        studies: STUDIES/STUDY/ENCODER/HEAD, each study in one of them.
        divergence: DIVERGENCE/ENCODER.
        localisation: LOCALISATION/ENCODER.
        images: the test images, a folder or an address.
        split: of these; so are `form` and `classes`, as `open_images` takes them.
        datasets: DATASETS/DATA/ENCODER/HEAD: of any images, those of `probes` among them.
        localised: the images of `localisation`; those of `images` if not given.
        localised_split: of these.
        blocks: BLOCKS/ENCODER.
        dataset: the name of the data set that `probes`, `attention` and `studies` are of; empty if unknown.
        receipts: of feature sets.
    """

    probes: Path | None = None
    attention: Path | None = None
    studies: tuple[Path, ...] = ()
    divergence: Path | None = None
    localisation: Path | None = None
    images: str | None = None
    split: str | None = None
    datasets: tuple[Path, ...] = ()
    localised: str | None = None
    localised_split: str | None = None
    blocks: Path | None = None
    dataset: str = ""
    receipts: Path | None = None
    form: str | None = None
    classes: Path | None = None


@dataclass(frozen=True)
class Examples:
    """Test images to show with maps: those of `ids`; else `n` drawn by `seed`; else `n` in turn over classes."""

    n: int = 6
    ids: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Inputs:
    """Everything that was found. `encoders` and `heads` are in the order of the page: trained encoders, then random ones."""

    probes: Mapping[tuple[str, str], Probe]
    attention: Mapping[str, Attention] = field(default_factory=dict)
    studies: Mapping[str, Mapping[tuple[str, str], Probe]] = field(default_factory=dict)  # by study, then as `probes`
    datasets: Mapping[str, Mapping[tuple[str, str], Probe]] = field(default_factory=dict)  # by data set, then as `probes`
    folders: Folders = field(default_factory=Folders)
    examples: Examples = field(default_factory=Examples)
    against: Mapping[str, Sequence[PublishedRow]] = field(default_factory=dict)  # by the name of their file

    @property
    def encoders(self) -> list[str]:
        last = self.untrained
        return sorted({encoder for encoder, _ in self.probes} | set(self.attention), key=lambda name: (name in last, name))

    @property
    def untrained(self) -> set[str]:
        """Encoders with random weights."""
        return untrained(self.probes) | {name for name, a in self.attention.items() if a.pretraining.is_untrained}

    @property
    def heads(self) -> list[str]:
        return in_order(head for _, head in self.probes)

    def probes_of(self, encoder: str) -> list[Probe]:
        """The probes of one encoder, in the order of `heads`."""
        return [self.probes[encoder, head] for head in self.heads if (encoder, head) in self.probes]

    def twin(self, encoder: str) -> str | None:
        """The random encoder to compare `encoder` with: of the same architecture if that is known, else the first."""
        last = self.untrained
        randoms = [name for name in self.encoders if name in last and self.probes_of(name)]
        if encoder in last or not randoms:
            return None
        known = {name: a.architecture for name, a in self.attention.items()}
        alike = [name for name in randoms if encoder in known and known.get(name) == known[encoder]]
        return (alike or randoms)[0]


def in_order(heads: Iterable[str]) -> list[str]:
    """Each head once, in the order of the page."""
    names = set(heads)
    return [head for head in FIRST_HEADS if head in names] + sorted(names - set(FIRST_HEADS))


def untrained(probes: Mapping[tuple[str, str], Probe]) -> set[str]:
    """Encoders of these probes that have random weights."""
    return {encoder for (encoder, _), probe in probes.items() if probe.pretraining.is_untrained}


def trained_first(probes: Mapping[tuple[str, str], Probe]) -> list[str]:
    """Encoders of these probes in the order of the page."""
    last = untrained(probes)
    return sorted({encoder for encoder, _ in probes}, key=lambda name: (name in last, name))


def collect(folders: Folders, examples: Examples = Examples()) -> Inputs:
    """Read what the stages wrote. Only probes are required, or attention statistics.

    Raises:
        BeyondClsError: no metrics under `folders.probes`, or a file that is damaged.
    """
    probes = _probes(folders.probes)
    if not probes and (folders.probes is not None or folders.attention is None):
        raise BeyondClsError(
            f"there are no metrics under {str(folders.probes)!r}, expected {folders.probes}/ENCODER/HEAD/metrics.json; "
            "run `beyondcls probe` (or `dvc repro probe`) first, or name the folder with --probes"
        )
    by_measure = {probe.measure: key for key, probe in probes.items()}
    if len(by_measure) > 1:
        of_several, of_one = by_measure["map"], by_measure["top1"]
        assert folders.probes is not None
        raise BeyondClsError(
            f"{folders.probes / '/'.join(of_several)} is of images with several labels, {folders.probes / '/'.join(of_one)} of "
            "images with one; heads of different images are compared as DATASETS/DATA/ENCODER/HEAD, so move one of them"
        )
    summaries = [read(file, "beyondcls attention", _attention) for file in files_in(folders.attention, "*/summary.json")]
    return Inputs(
        probes, {a.encoder: a for a in summaries}, _each_once(folders.studies, "study"), _datasets(folders), folders, examples
    )


def _datasets(folders: Folders) -> dict[str, dict[tuple[str, str], Probe]]:
    """Probes by data set; none if these are only those that `folders.probes` holds."""
    by_name = _each_once(folders.datasets, "data set")
    main = folders.probes and folders.probes.resolve()
    places = [folder / name for folder in folders.datasets for name in by_name if (folder / name).is_dir()]
    return {} if all(place.resolve() == main for place in places) else by_name


def _each_once(folders: Iterable[Path], kind: str) -> dict[str, dict[tuple[str, str], Probe]]:
    """FOLDER/NAME/ENCODER/HEAD of several folders, by name, encoder and head.

    Raises:
        BeyondClsError: two folders have the same name; `kind` says what they hold.
    """
    by_name: dict[str, dict[tuple[str, str], Probe]] = {}
    places: dict[str, Path] = {}
    for folder in folders:
        for name, probes in _groups(folder).items():
            if name in places:
                raise BeyondClsError(
                    f"the {kind} {name!r} is in {places[name]} and in {folder / name}, expected each in one folder; "
                    "rename one of them"
                )
            by_name[name], places[name] = probes, folder / name
    return by_name


def _groups(folder: Path | None) -> dict[str, dict[tuple[str, str], Probe]]:
    """FOLDER/NAME/ENCODER/HEAD, by name, encoder and head."""
    groups = {below.name: _probes(below) for below in files_in(folder, "*/") if below.is_dir()}
    return {name: probes for name, probes in groups.items() if probes}


def _probes(folder: Path | None) -> dict[tuple[str, str], Probe]:
    """FOLDER/ENCODER/HEAD, by encoder and head; without heads that read tokens which the encoder lacks."""
    probes = [read(file, "beyondcls probe", _probe) for file in files_in(folder, "*/*/metrics.json")]
    return {(p.encoder, p.head): p for p in probes if p is not None}


def files_in(folder: Path | None, pattern: str) -> list[Path]:
    """What matches below a folder, in order; empty if no folder is given."""
    return [] if folder is None else sorted(folder.glob(pattern))


def read(file: Path, stage: str, build: Callable[[Path], T]) -> T:
    """What `build` makes of a stage's file.

    Raises:
        BeyondClsError: `build` does not find in `file`, or beside it, what the stage writes.
    """
    try:
        return build(file)
    except KeyError as error:
        raise BeyondClsError(f"{file} or a table beside it has no {error}; run `{stage}` for it again") from error
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise BeyondClsError(
            f"{file} or a table beside it is damaged ({error}), expected what `{stage}` writes; run it again"
        ) from error


def _probe(file: Path) -> Probe | None:
    content = json.loads(file.read_text(encoding="utf-8"))
    if "absent" in content:
        return None
    weights, correct = (file.parent / "trained" / name for name in ("weights.npy", "correct.npz"))
    return Probe(
        encoder=file.parent.parent.name,
        head=file.parent.name,
        recorded_encoder=str(content["encoder"]),
        options=dict(content["options"]),
        measures={"map" if "map" in content else "top1": measure_of(content["map" if "map" in content else "top1"])}
        | {name: measure_of(content[name]) for name in MEASURES if name in content},
        n_training=int(content["n_training"]),
        n_test=int(content["n_test"]),
        n_tokens=None if content["n_tokens"] is None else int(content["n_tokens"]),
        n_classes=int(content["n_classes"]),
        seeds=tuple(int(seed) for seed in content["seeds"]),
        recipe=dict(content["recipe"] if "protocol" not in content else content["protocol"]),
        features={name: str(content["features"][name]) for name in ("training", "test")},
        selected=_selected(content.get("selected", {})),
        command=str(content.get("command", "")),
        curve=_curve(file.parent / "curves.csv"),
        weights=weights if weights.is_file() else None,
        aggregator=str(content.get("aggregator", "")),
        crops=content.get("augmentation", {}).get("n_crops"),
        cost=dict(content.get("cost", {})),
        correct=correct if correct.is_file() else None,
        test_images=str(content["test_images"]) if "test_images" in content else None,
        timing=_timing(file),
        notes=tuple(str(note) for note in content.get("notes", ())),
        transferred=str(content["transferred"]["training"]) if "transferred" in content else None,
        pretraining=pretraining_in(content),
        recorded=content,
        best_epoch=_best_epoch(file.parent / "curves.csv"),
        folder=file.parent,
    )


def pretraining_in(content: Mapping[str, Any]) -> Pretraining:
    """How the encoder of a file was trained; files too old to record it are looked up by name in the registry.

    Raises:
        KeyError: the content is not as the stages write it.
        ValueError: the content is not as the stages write it.
    """
    return Pretraining.from_dict(content) or older.pretraining_of(str(content["encoder"]))


def _timing(metrics: Path) -> dict[str, Any]:
    """The content of timing.json beside `metrics`; empty without that file, or if it belongs to the metrics of another run.

    Raises:
        KeyError: the file is not as the stage writes it.
        ValueError: the file is not as the stage writes it.
    """
    file = metrics.with_name("timing.json")
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if content["metrics"] != xxhash.xxh3_128_hexdigest(metrics.read_bytes()):
        return {}
    about: dict[str, Any] = {
        "device": str(content["device"]),
        "threads": int(content["threads"]),
        "n_images": int(content["n_images"]),
    }
    if "training_s" in content:  # files of earlier versions lack it
        about |= {"training_s": _finite(content["training_s"]), "n_trained_together": int(content["n_trained_together"])}
    return {"ms_per_image": _finite(content["ms_per_image"]), **about}


def _selected(content: Mapping[str, Any]) -> str:
    """What was selected on what, in words: `base_lr 0.03 by top1 on 10 % of the training images, stratified (500 images)`."""
    if content.get("by") is None:
        return "nothing"
    not_parameters = ("on", "by", "n_images", "candidates", "percent", "note")
    chosen = ", ".join(f"{name} {value:g}" for name, value in content.items() if name not in not_parameters)
    return f"{chosen} by {content['by']} on {content['on']} ({int(content['n_images']):,} images)"


def measure_of(content: Mapping[str, Any]) -> Measure:
    """A number over seeds, as stages write it.

    Raises:
        KeyError: the content is not as the stages write it.
        ValueError: the content is not as the stages write it.
    """
    values = tuple(float(value) for value in content["values"])
    return Measure(_finite(content["mean"]), _finite(content["std"]), values)


def _curve(file: Path) -> Curve | None:
    """Mean over seeds; None where there is no such file, nothing in it, or several labels an image."""
    rows = _rows(file)
    if not rows or "map" in rows[0]:
        return None
    epochs = sorted({int(row["epoch"]) for row in rows})

    def mean(name: str) -> tuple[float, ...]:
        by_epoch = [[_finite(row[name]) for row in rows if int(row["epoch"]) == epoch] for epoch in epochs]
        return tuple(sum(values) / len(values) for values in by_epoch)

    return Curve(tuple(epochs), mean("loss"), mean("top1"))


def _best_epoch(file: Path) -> BestEpoch | None:
    """From the measures of every epoch; None where there is no such file, or nothing in it."""
    by_seed: dict[int, list[tuple[float, int]]] = {}
    for row in _rows(file):
        by_seed.setdefault(int(row["seed"]), []).append((_finite(row["map" if "map" in row else "top1"]), -int(row["epoch"])))
    if not by_seed:
        return None
    best = [max(entries) for entries in by_seed.values()]
    values = tuple(value for value, _ in best)
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return BestEpoch(Measure(statistics.fmean(values), std, values), tuple(-epoch for _, epoch in best))


def _attention(file: Path) -> Attention:
    content = json.loads(file.read_text(encoding="utf-8"))
    rows = _rows(file.parent / "statistics.csv")
    maps, heads = file.parent / "maps", file.parent / "heads.csv"
    cls_map = (maps if maps.is_dir() else file.parent) / "cls_map.npy"  # earlier versions kept it beside the tables
    return Attention(
        encoder=file.parent.name,
        key=str(content["key"]),
        data=str(content["data"]),
        n_images=int(content["n_images"]),
        n_tokens=None if content["n_tokens"] is None else int(content["n_tokens"]),
        architecture=dict(content["architecture"]),
        statistics={
            name: tuple((mean, std) for mean, std in blocks) for name, blocks in _by_block(rows, ("mean", "std")).items()
        },
        cls_map=cls_map if cls_map.is_file() else None,
        heads=heads if heads.is_file() else None,
        crops=crops if (crops := maps / "crops.npy").is_file() else None,
        medians={
            name: tuple((median, lower, upper) for median, lower, upper in blocks)
            for name, blocks in _by_block(rows, QUARTILES).items()
            if name in content.get("unbounded", ())
        },
        declared=_declared(content, {row["statistic"]: None for row in rows}),
        pretraining=pretraining_in(content),
    )


def _declared(content: Mapping[str, Any], names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Titles and units by statistic, in the order of the table; files that lack them get those that this version declares."""
    described = content.get("statistics", {})
    return {n: (str(described[n]["title"]), str(described[n]["unit"])) if n in described else older.declared(n) for n in names}


def _by_block(rows: Sequence[Mapping[str, str]], columns: tuple[str, ...]) -> dict[str, list[tuple[float, ...]]]:
    """These columns of a table, by statistic and block; nothing where it has no such columns."""
    by_name: dict[str, dict[int, tuple[float, ...]]] = {}
    for row in rows:
        if columns == QUARTILES and not set(columns) <= row.keys():
            continue
        by_name.setdefault(row["statistic"], {})[int(row["block"])] = tuple(_finite(row[column]) for column in columns)
    return {name: [blocks[block] for block in range(len(blocks))] for name, blocks in by_name.items()}


def _rows(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(newline="", encoding="utf-8") as source:
        return list(csv.DictReader(source))


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number")
    return number
