"""What a feature set is: the description whose digest is its key."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from store.errors import StoreError
from store.format.layout import ATTRIBUTE

FORMAT_VERSION = 2
DATA_FIELDS = ("data", "n_images", "truths")  # fields that describe the data set, not the encoder
# What may differ between a feature set and one that extends it: more of the same encoder's features of the same images.
EXTENDABLE_FIELDS = (*DATA_FIELDS, "blocks", "statistics", "maps", "vectors", "n_views", "drop_path")
SLIDE = "slide"  # crop mode of a transform: an image just fills the input, and views are windows along its longer side
MOST_NAMED = 3  # vectors that a message names
# So that sets without them have the keys that they had before there was such a field.
ABSENT_IF_EMPTY = ("vectors", "truths", "drop_path")


@dataclass(frozen=True)
class FeatureSpec:
    """One frozen encoder's view of one data set. Holds content only: no path, host, time or pickle.

    Two feature sets with equal keys hold equal features up to the rounding of the machine that computed them.
    """

    weights: str  # digest of the encoder's parameters
    architecture: str  # timm name and its arguments, or another unambiguous description
    transform: Mapping[str, Any]  # size, crop, interpolation, mean and std of the evaluation view
    data: str  # digest of ids, labels, boxes and image bytes, in row order
    n_images: int
    blocks: tuple[int, ...]  # blocks whose tokens are kept, counted from 0; none where only vectors are
    statistics: tuple[str, ...] = ()  # attention statistics, of every block
    maps: tuple[str, ...] = ()  # attention maps: row and block, "cls/block11"
    n_views: int = 1
    point: str = "pre-norm"  # tokens as they leave the block, before any final norm
    dtype: str = "float16"  # codec of tokens; maps are float16, or float32 if that is the codec
    compute_dtype: str = "float32"
    format_version: int = FORMAT_VERSION
    vectors: tuple[str, ...] = ()  # kept with the tokens: kind and block, "average/block0", "cls/block0"; or "pooled"
    truths: Mapping[str, str] = field(
        default_factory=dict
    )  # "segmentation", "instances" -> digest of them and of their classes
    drop_path: float = 0.0  # rate at which branches of the last block were dropped for views from 1 on; 0 in the first

    @cached_property
    def key(self) -> str:
        """32 hexadecimal digits: the start of the SHA-256 of the canonical JSON form."""
        return _digest_of(self.to_dict())

    @property
    def encoder_key(self) -> str:
        """The key without the data set: equal for the training and the test set of one extraction."""
        return _digest_of({k: v for k, v in self.to_dict().items() if k not in DATA_FIELDS})

    def map_blocks(self, row: str) -> tuple[int, ...]:
        """Blocks of which a row of attention ("cls", "centre") is kept, ascending."""
        named = (name.partition("/block")[::2] for name in self.maps)  # (row, block)
        return tuple(sorted(int(block) for stored_row, block in named if stored_row == row))

    @property
    def vector_blocks(self) -> tuple[int, ...]:
        """Blocks whose average patch token is kept, and [cls] where the encoder has it, ascending."""
        named = (name.partition("/block")[::2] for name in self.vectors)  # (kind, block)
        return tuple(sorted(int(block) for kind, block in named if kind == "average"))

    @property
    def has_windows(self) -> bool:
        """Whether views are windows, which show an image together; else view 0 is the evaluation crop."""
        return self.transform.get("crop_mode") == SLIDE

    @property
    def deepest(self) -> int:
        """The block that is read where none is named: the deepest whose tokens are kept, or else whose vectors are."""
        return (self.blocks or self.vector_blocks)[-1]

    @property
    def is_pooled(self) -> bool:
        """Whether the vector is kept that the encoder's own pooling gives."""
        return "pooled" in self.vectors

    def differences(self, other: "FeatureSpec") -> list[str]:
        """Names of the fields in which the two differ."""
        return [f.name for f in fields(self) if _as_json(getattr(self, f.name)) != _as_json(getattr(other, f.name))]

    def explained(self, other: "FeatureSpec", ignored: Sequence[str] = ()) -> str:
        """The same as text, with the values where it matters: `dtype, transform (crop_pct 0.9 and 0.875)`."""
        names = []
        for name in (n for n in self.differences(other) if n not in ignored):
            if name == "transform":
                ours, theirs = self.to_dict()[name], other.to_dict()[name]
                differing = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
                name += f" ({'; '.join(f'{n} {_as_text(ours.get(n))} and {_as_text(theirs.get(n))}' for n in differing)})"
            elif name == "vectors":
                differing = sorted({*self.vectors} ^ {*other.vectors})
                name += f" ({', '.join(differing[:MOST_NAMED])}{', …' * (len(differing) > MOST_NAMED)})"
            elif name == "drop_path":
                name += f" ({self.drop_path} and {other.drop_path})"
            names.append(name)
        return ", ".join(names)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        described = _as_json(asdict(self))
        return {name: value for name, value in described.items() if value or name not in ABSENT_IF_EMPTY}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FeatureSpec":
        """From the fields as they are written.

        Raises:
            StoreError: fields are missing or unknown.
        """
        expected, names = {f.name for f in fields(cls)}, {*values, *ABSENT_IF_EMPTY}
        if names != expected:
            wrong = f"missing {sorted(expected - names)}, unknown {sorted(names - expected)}"
            raise StoreError(
                f"the description of a feature set has the wrong fields: {wrong}; was it written by another version?"
            )
        tuples = {name: tuple(values.get(name, ())) for name in ("blocks", "statistics", "maps", "vectors")}
        return cls(**{**values, **tuples, "truths": dict(values.get("truths", {}))})


def _as_json(value: Any) -> Any:
    """As JSON has it: a tuple is a list."""
    return json.loads(json.dumps(value))


def _as_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else "by default" if value is None else str(value)


def _digest_of(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def key_in(content: bytes) -> str | None:
    """The key in a receipt or a set's zarr.json; None if it is neither."""
    try:
        values = json.loads(content)
        if "attributes" in values:
            values = values["attributes"][ATTRIBUTE]
        elif "digest" not in values:
            return None
        return values["key"] if re.fullmatch(r"[0-9a-f]{32}", values["key"], re.ASCII) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
