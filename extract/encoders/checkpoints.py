"""A list of encoders in a file: where the weights of each come from, and the digest of those that somebody has loaded."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from extract.encoders import ENCODERS, load_encoder
from store import BeyondClsError
from store.places.disk import write_file

UNKNOWN = "not yet recorded"


@dataclass(frozen=True)
class ListedCheckpoint:
    """A row of the list.

    Attributes:
        encoder: its name, in a parameter file.
        source: where its weights are published, as `beyondcls encoders` shows it.
        file: name of the file there, or of that which was given by hand; empty where neither has a name.
        digest: of the weights in the model, as `weights` of a parameter file expects it; UNKNOWN until they are loaded.
    """

    encoder: str
    source: str
    file: str = ""
    digest: str = UNKNOWN

    @classmethod
    def of(cls, encoder: str, loading: Mapping[str, Any]) -> Self:
        """What is known before weights are loaded; `loading`: arguments of `load_encoder`."""
        model = str(loading.get("model") or encoder)
        source = ENCODERS.own[model].weights if model in ENCODERS.own else f"timm/{model}"
        place = str(loading.get("checkpoint") or ("" if source.startswith(("see ", "timm/")) else source))
        return cls(encoder, source, place.rpartition("/")[2])

    def loaded(self, loading: Mapping[str, Any]) -> Self:
        """With the digest of its weights, which are fetched if need be."""
        digest = load_encoder(self.encoder, **loading).weights
        if self.digest not in (UNKNOWN, digest):
            raise BeyondClsError(
                f"the weights of {self.encoder} have digest {digest}, expected {self.digest} as recorded; fetch {self.source} "
                f"again, or, if other weights are meant, write {UNKNOWN!r} in place of the digest"
            )
        return replace(self, digest=digest)


COLUMNS = [column.name for column in fields(ListedCheckpoint)]


def read_checkpoints(file: Path) -> dict[str, ListedCheckpoint]:
    """Rows of a list, by encoder; none where there is no file."""
    if not file.is_file():
        return {}
    try:
        with file.open(newline="", encoding="utf-8") as text:
            rows = csv.DictReader(text)
            if rows.fieldnames != COLUMNS:
                raise BeyondClsError(f"{file} has columns {rows.fieldnames}, expected {COLUMNS}; name another file")
            return {row["encoder"]: ListedCheckpoint(**row) for row in rows}
    except (UnicodeDecodeError, csv.Error, TypeError) as error:
        raise BeyondClsError(
            f"{file} is not a table in UTF-8 ({error}), expected columns {COLUMNS}; name another file"
        ) from error


def write_checkpoints(file: Path, rows: Iterable[ListedCheckpoint]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, rows))
    write_file(file, [text.getvalue().encode()])
