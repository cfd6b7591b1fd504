"""What a feature set is: the description whose digest is its key."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from store.errors import StoreError

FORMAT_VERSION = 2
DATA_FIELDS = ("data", "n_images")  # fields that describe the data set, not the encoder
# What may differ between a feature set and one that extends it: more of the same encoder's features of the same images.
EXTENDABLE_FIELDS = (*DATA_FIELDS, "blocks", "statistics", "maps", "n_views")


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
    blocks: tuple[int, ...]  # blocks whose tokens are kept, counted from 0
    statistics: tuple[str, ...] = ()  # attention statistics, of every block
    maps: tuple[str, ...] = ()  # attention maps: row and block, "cls/block11"; in older sets "cls", of the last block
    n_views: int = 1
    point: str = "pre-norm"  # tokens as they leave the block, before any final norm
    dtype: str = "float16"  # codec of tokens; maps are float16, or float32 if that is the codec
    compute_dtype: str = "float32"
    format_version: int = FORMAT_VERSION

    @property
    def key(self) -> str:
        """32 hexadecimal digits: the start of the SHA-256 of the canonical JSON form."""
        return _digest(self.to_dict())

    @property
    def encoder_key(self) -> str:
        """The key without the data set: equal for the training and the test set of one extraction."""
        return _digest({k: v for k, v in self.to_dict().items() if k not in DATA_FIELDS})

    def map_blocks(self, row: str, last: int) -> tuple[int, ...]:
        """Blocks of which a row of attention ("cls", "centre") is kept. `last`: the encoder's last block."""
        named = [name.partition("/block")[::2] for name in self.maps]  # (row, block)
        return tuple(sorted(int(block) if block else last for stored_row, block in named if stored_row == row))

    def differences(self, other: "FeatureSpec") -> list[str]:
        """Names of the fields in which the two differ."""
        ours, theirs = self.to_dict(), other.to_dict()
        return [name for name in ours if ours[name] != theirs[name]]

    def explained(self, other: "FeatureSpec", ignored: Sequence[str] = ()) -> str:
        """The same as text, with the values where transforms differ: `dtype, transform (crop_pct 0.9 and 0.875)`."""
        names = []
        for name in (n for n in self.differences(other) if n not in ignored):
            if name == "transform":
                ours, theirs = self.to_dict()[name], other.to_dict()[name]
                differing = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
                name += f" ({'; '.join(f'{n} {_text(ours.get(n))} and {_text(theirs.get(n))}' for n in differing)})"
            names.append(name)
        return ", ".join(names)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FeatureSpec":
        """From the fields as they are written.

        Raises:
            StoreError: fields are missing or unknown.
        """
        expected, names = {f.name for f in fields(cls)}, set(values)
        if names != expected:
            wrong = f"missing {sorted(expected - names)}, unknown {sorted(names - expected)}"
            raise StoreError(
                f"the description of a feature set has the wrong fields: {wrong}; was it written by another version?"
            )
        tuples = {name: tuple(values[name]) for name in ("blocks", "statistics", "maps")}
        return cls(**{**values, **tuples})


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]
