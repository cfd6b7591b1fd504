"""What the report is made of: the folders that the other stages wrote, read into one value."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pipelines.parameters.params import Primary
from pipelines.report.dense import by_dataset, result_of
from pipelines.report.dense import trained_first as in_page_order
from pipelines.report.galleries.images import DenseImages
from pipelines.report.kinds import KINDS, OF_SETS, pattern_of
from pipelines.report.measured import AttentionResult, Entries, Probe, by_accuracy, untrained_encoders
from pipelines.report.published.row import PublishedRow
from pipelines.report.reading import attention_in, files_in, probe_in, read
from store import BeyondClsError


@dataclass(frozen=True)
class Folders:
    """Where the stages have written, and what the report may draw from. Nothing is read of a folder that is not named.

    Attributes:
        probes: PROBES/ENCODER/HEAD; required. Any of the others may be missing; HOLDS of the command says what they hold.
        studies: STUDIES/STUDY/ENCODER/HEAD, each study in one of them.
        images: the test images, a folder or an address.
        split: of these; so are `form` and `classes`, as `open_images` takes them, and `pixels`: scale and orientation.
        datasets: DATASETS/DATA/ENCODER/HEAD: of any images, those of `probes` among them.
        localised: the images of `localisation`; those of `images` if not given.
        localised_split: of these.
        dataset: the name of the data set of `probes`, `attention` and `studies`; empty if unknown.
        receipts: of feature sets.
        dense_images: the test images of the data sets that are segmented, or whose objects are detected.
        primary: the contrast that was declared before anything was measured, if one was.
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
    geometry: Path | None = None
    similarity: Path | None = None
    norms: Path | None = None
    few_shot: Path | None = None
    correspondence: Path | None = None
    retrieval: Path | None = None
    tracking: Path | None = None
    scores: Path | None = None
    dataset: str = ""
    receipts: Path | None = None
    form: str | None = None
    classes: Path | None = None
    pixels: Mapping[str, Any] = field(default_factory=dict)
    segmentation: Path | None = None
    depth: Path | None = None
    detection: Path | None = None
    dense_images: DenseImages = field(default_factory=DenseImages)
    primary: Primary | None = None

    @property
    def need_no_probes(self) -> bool:
        """Whether there is anything to show without them."""
        folders = (self.attention, self.localisation, self.segmentation, self.depth, self.detection)
        return any(folder is not None for folder in folders)


@dataclass(frozen=True)
class Examples:
    """Test images to show with maps: those of `ids`; else `n` drawn by `seed`; else `n` in turn over classes.

    Attributes:
        score: of detections that are drawn, at least; 0…1.
    """

    n: int = 6
    ids: tuple[str, ...] = ()
    seed: int | None = None
    score: float = 0.5


@dataclass(frozen=True)
class Inputs:
    """Everything that was found. `encoders` and `heads` are in the order of the page: trained encoders, then random ones."""

    probes: Mapping[tuple[str, str], Probe]
    attention: Mapping[str, AttentionResult] = field(default_factory=dict)
    studies: Mapping[str, Mapping[tuple[str, str], Probe]] = field(default_factory=dict)  # by study, then as `probes`
    datasets: Mapping[str, Mapping[tuple[str, str], Probe]] = field(default_factory=dict)  # by data set, then as `probes`
    folders: Folders = field(default_factory=Folders)
    examples: Examples = field(default_factory=Examples)
    against: Mapping[str, Sequence[PublishedRow]] = field(default_factory=dict)  # by the name of their file
    segmentation: Mapping[str, Mapping[str, Entries]] = field(default_factory=dict)  # by data set and encoder
    detection: Mapping[str, Mapping[str, Entries]] = field(default_factory=dict)  # by data set and encoder
    depth: Mapping[str, Mapping[str, Entries]] = field(default_factory=dict)  # by data set and encoder

    @property
    def encoders(self) -> list[str]:
        last = self.untrained
        return sorted({encoder for encoder, _ in self.probes} | set(self.attention), key=lambda name: (name in last, name))

    @property
    def untrained(self) -> set[str]:
        """Encoders with random weights."""
        return untrained_encoders(self.probes) | {name for name, a in self.attention.items() if a.pretraining.is_untrained}

    @property
    def heads(self) -> list[str]:
        """[cls], average and AbMILP, then others from the most accurate on."""
        return by_accuracy(self.probes.values())

    def probes_of(self, encoder: str) -> list[Probe]:
        """The probes of one encoder, in the order of `heads`."""
        return [self.probes[encoder, head] for head in self.heads if (encoder, head) in self.probes]

    def results(self, kind: str, encoders: Collection[str] = ()) -> list[Entries]:
        """Results of a kind, of the encoders of the page or of these, in the order of the page."""
        holds, command = KINDS[kind]
        found = (result_of(file, command) for file in files_in(getattr(self.folders, kind), pattern_of(holds)))
        dataset = {} if kind in OF_SETS else {"dataset": self.folders.dataset}
        return in_page_order(Entries(one, **dataset) for one in found if one.encoder in (encoders or self.encoders))

    def twin(self, encoder: str) -> str | None:
        """The random encoder to compare `encoder` with: of the same architecture if that is known, else the first."""
        last = self.untrained
        randoms = [name for name in self.encoders if name in last and self.probes_of(name)]
        if encoder in last or not randoms:
            return None
        known = {name: a.architecture for name, a in self.attention.items()}
        alike = [name for name in randoms if encoder in known and known.get(name) == known[encoder]]
        return (alike or randoms)[0]


T = TypeVar("T")


def collect(folders: Folders, examples: Examples = Examples()) -> Inputs:
    """Read what the stages wrote. Only probes are required, or attention statistics, or results on dense tasks.

    Raises:
        BeyondClsError: no metrics under `folders.probes`, or a file that is damaged.
    """
    probes = _probes(folders.probes)
    if not probes and (folders.probes is not None or not folders.need_no_probes):
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
    summaries = [read(file, "beyondcls attention", attention_in) for file in files_in(folders.attention, "*/summary.json")]
    return Inputs(
        probes,
        {a.encoder: a for a in summaries},
        _merge(folders.studies, "study"),
        _by_dataset(folders),
        folders,
        examples,
        segmentation=by_dataset(folders.segmentation, "segment"),
        detection=by_dataset(folders.detection, "detect"),
        depth=by_dataset(folders.depth, "depth"),
    )


def collect_probes(folders: Folders) -> Inputs:
    """Heads alone, of `probes`, `datasets` and `studies`, any of which may be missing.

    Raises:
        BeyondClsError: a file that is damaged, or two folders with a study or a data set of one name.
    """
    return Inputs(
        _probes(folders.probes), studies=_merge(folders.studies, "study"), datasets=_by_dataset(folders), folders=folders
    )


def _by_dataset(folders: Folders) -> dict[str, dict[tuple[str, str], Probe]]:
    """Probes by data set; none if these are only those that `folders.probes` holds."""
    by_name = _merge(folders.datasets, "data set")
    main = folders.probes and folders.probes.resolve()
    places = [folder / name for folder in folders.datasets for name in by_name if (folder / name).is_dir()]
    return {} if all(place.resolve() == main for place in places) else by_name


def _merge(folders: Iterable[Path], kind: str) -> dict[str, dict[tuple[str, str], Probe]]:
    """FOLDER/NAME/ENCODER/HEAD of several folders, by name, encoder and head.

    Raises:
        BeyondClsError: two folders have the same name; `kind` says what they hold.
    """
    by_name: dict[str, dict[tuple[str, str], Probe]] = {}
    places: dict[str, Path] = {}
    for place in (place for folder in folders for place in files_in(folder, "*/") if place.is_dir()):
        if probes := _probes(place):
            if (name := place.name) in places:
                raise BeyondClsError(
                    f"the {kind} {name!r} is in {places[name]} and in {place}, expected each in one folder; rename one of them"
                )
            by_name[name], places[name] = probes, place
    return by_name


def _probes(folder: Path | None) -> dict[tuple[str, str], Probe]:
    """FOLDER/ENCODER/HEAD, by encoder and head; without heads that read tokens which the encoder lacks."""
    probes = [read(file, "beyondcls probe", probe_in) for file in files_in(folder, "*/*/metrics.json")]
    return {(p.encoder, p.head): p for p in probes if p is not None}


def subset(inputs: Inputs, encoders: Sequence[str]) -> Inputs:
    """The inputs restricted to these encoders.

    Raises:
        BeyondClsError: there are no results of one of them, or none of them was probed.
    """
    dense = [*inputs.segmentation.values(), *inputs.detection.values(), *inputs.depth.values()]
    known = list(dict.fromkeys([*inputs.encoders, *(name for results in dense for name in results)]))
    for name in encoders:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise BeyondClsError(f"unknown encoder {name!r}; {meant}known: {', '.join(known)} (--encoder)")

    def of(group: Mapping[Any, T]) -> dict[Any, T]:
        """Results by encoder, or encoder and head."""
        return {key: one for key, one in group.items() if (key if isinstance(key, str) else key[0]) in encoders}

    probes = of(inputs.probes)
    if inputs.probes and not probes:
        raise BeyondClsError(f"no head was probed on {', '.join(encoders)}, expected one at least; run `beyondcls probe` first")
    several = ("studies", "datasets", "segmentation", "detection", "depth")  # groups that have none of these are left out
    groups: dict[str, Any] = {
        name: {key: kept for key, one in getattr(inputs, name).items() if (kept := of(one))} for name in several
    }
    return replace(inputs, probes=probes, attention=of(inputs.attention), **groups)
