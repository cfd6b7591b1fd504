"""The files of a result: metrics.json with measures alone, which `dvc metrics` shows, description.json with all, and arrays."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np
import xxhash

from store import BeyondClsError, FeatureStore
from store.environment import machine, versions_of
from store.errors import too_old
from store.format.pretraining import pretraining_fields
from store.writing.results import ResultFolder

if TYPE_CHECKING:
    import torch

PACKAGES = ("beyondcls", "torch", "numpy")  # whose versions may change what is computed from features
METRICS, DESCRIPTION = "metrics.json", "description.json"
# In the results of a head with one label an image: top-1 accuracy of the classifier that `probe.convergence` fits, percent,
# and how far the head is below, in standard errors of the paired difference over test images.
REACHED, SHORT = "converged_top1", "short_of_converged"
# Of heads that were trained: mean over classes of the percentage that is right, and mean negative log-likelihood in nats.
BALANCED, NLL = "balanced_accuracy", "nll"
DIGEST = "metrics"  # in description.json: xxh3_128 of the file of measures that it belongs to
MOST_PACKED = 1032  # times that deflate, which numpy uses, shortens anything


def computed_by(device: "torch.device") -> dict[str, Any]:
    """The entries `versions` and `machine` of a description."""
    import torch  # which those who only read results need not wait for

    model = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    versions = versions_of(PACKAGES) | {"torch": str(torch.__version__)}  # which says for which CUDA it was built
    return {"versions": versions, "machine": machine(model)}


class ResultError(BeyondClsError):
    """Measures and their description are not of one run."""


def result_folder(
    folder: Path,
    encoder: str,
    of_earlier: Iterable[str] | Callable[[], Iterable[Path]] = (),
    seal: str = "",
    mark: str = DESCRIPTION,
) -> ResultFolder:
    """The folder of a result on features of an encoder, for its next one: of the same encoder, unless it has that one's name.

    Args:
        mark: the file that says what was measured. For others, see `ResultFolder`.

    Raises:
        BeyondClsError: it holds a result of another encoder.
    """
    try:
        there = json.loads((folder / mark).read_text(encoding="utf-8")).get("encoder", encoder)
    except (OSError, ValueError, AttributeError):  # nothing, or nothing that counts
        there = encoder
    if there != encoder and encoder not in folder.absolute().parts:
        raise BeyondClsError(
            f"{folder} holds a result of encoder {there}, which that of {encoder} would replace; give another --out, e.g. "
            f"{folder / encoder}, or remove {folder}"
        )
    return ResultFolder(folder, mark, of_earlier, seal)


def described_images(store: FeatureStore, n_images: int) -> dict[str, Any]:
    """What a result says of the feature set whose images were measured."""
    of_set = {"features": {"test": store.spec.key}, "data": store.spec.data, "n_images": n_images}
    return {"encoder": store.attributes["encoder"], **pretraining_fields(store.attributes), **of_set}


def over_seeds(values: Sequence[float], without: Sequence[Sequence[float]] | np.ndarray = ()) -> dict[str, Any]:
    """A measure: mean, standard deviation over seeds (n - 1 in the denominator; 0 for one value), and the individual values.

    Args:
        without: of each seed, the measure without each group of test images in turn (`probe.subsets`). The mean over seeds is
            kept if all of them could be measured (none is NaN).
    """
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    measure = {"mean": float(np.mean(values)), "std": std, "values": [float(value) for value in values]}
    left_out = np.mean(without, 0) if len(without) else np.array([])
    return measure | ({"without": left_out.tolist()} if left_out.size and np.isfinite(left_out).all() else {})


def is_measure(value: Any) -> bool:
    """Whether this is what `over_seeds` makes."""
    return isinstance(value, Mapping) and {"mean", "values"} <= value.keys()


def summary(content: Mapping[str, Any]) -> dict[str, Any]:
    """Means of the measures in `content` by their names, those in mappings within it by the names of these.

    The first measure of each mapping has its standard deviation behind it, as NAME_std, if there are several values. What is no
    measure, or could not be measured (NaN, null), is left out.
    """
    means: dict[str, Any] = {}
    for name, value in content.items():
        if not isinstance(value, Mapping):
            continue
        if is_measure(value):
            if value["mean"] is None or value["mean"] != value["mean"]:
                continue
            of_first = {} if means or len(value["values"]) < 2 else {f"{name}_std": value["std"]}
            means |= {name: value["mean"]} | of_first
        elif of_group := summary(value):
            means[name] = of_group
    return means


def write_result(metrics: Path, content: Mapping[str, Any], shown: Mapping[str, Any] | None = None) -> None:
    """Write the file of measures, and description.json next to it.

    Args:
        metrics: FOLDER/metrics.json.
        content: plain values; measures as `over_seeds` gives them.
        shown: what the file of measures sums up, if not all measures of `content`.
    """
    text = json.dumps(summary(content if shown is None else shown), indent=1) + "\n"
    described = {**content, DIGEST: xxhash.xxh3_128_hexdigest(text.encode())}
    metrics.with_name(DESCRIPTION).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
    metrics.write_text(text, encoding="utf-8", newline="\n")


def read_result(metrics: Path) -> dict[str, Any]:
    """The content that `write_result` was given.

    Raises:
        ResultError: there is no description of the measures, or one of other measures.
        OSError: the file of measures is missing.
        ValueError: a file is damaged.
    """
    file, measures = metrics.with_name(DESCRIPTION), _as_mapping(json.loads(metrics.read_text(encoding="utf-8")))
    if not file.is_file():
        if "encoder" in measures:
            again = "run the command again (`dvc repro`)"
            raise ResultError(too_old(metrics, "a whole result", f"measures alone, which {DESCRIPTION} describes", again))
        raise ResultError(
            f"{metrics} holds measures alone and there is no {file}, expected what describes them; get both of one run "
            "(`dvc checkout`, `dvc pull`), or run the command again"
        )
    described = _as_mapping(json.loads(file.read_text(encoding="utf-8")))
    if described.pop(DIGEST, None) != xxhash.xxh3_128_hexdigest(metrics.read_bytes()):
        raise ResultError(
            f"{file} describes other measures than those in {metrics}, expected files of one run; get both (`dvc checkout`, "
            "`dvc pull`), or run the command again"
        )
    return described


def digest_of(metrics: Path) -> str:
    """xxh3_128 of the file that holds the whole result, hexadecimal.

    Raises:
        OSError: it is missing.
    """
    return xxhash.xxh3_128_hexdigest(metrics.with_name(DESCRIPTION).read_bytes())


def _as_mapping(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"it holds {type(content).__name__}, expected an object of names and values")
    return content


def array_of(file: Path, expected: str, member: str | None = None) -> np.ndarray:
    """The array of a .npy file, mapped; or a member of a .npz file, in memory. No pickle is ever read.

    numpy.load takes the memory that a header states before it reads; here the header is compared with the bytes that are there.

    Args:
        expected: what it should be, and what to do otherwise, for the message.

    Raises:
        BeyondClsError: it is damaged, cut, or no array of numbers.
        PermissionError: it may not be read.
    """
    try:
        if member is None:
            return np.lib.format.open_memmap(file, "r")
        with ZipFile(file) as archive:
            entry = archive.getinfo(f"{member}.npy")
            if entry.file_size > MOST_PACKED * file.stat().st_size:
                raise ValueError(f"its {member} would unpack to {entry.file_size} bytes")
            content = archive.read(entry)
        source = BytesIO(content)
        version = np.lib.format.read_magic(source)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(source)
        if min(shape, default=0) < 0:
            raise ValueError(f"its shape is {list(shape)}")
        return np.frombuffer(content, dtype, offset=source.tell()).reshape(shape, order="F" if is_fortran else "C")
    except PermissionError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds
        reason = " ".join(str(error).split())[:200]  # numpy cites whole headers
        raise BeyondClsError(f"{file} is damaged ({reason}), expected {expected}") from error
