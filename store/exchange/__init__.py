"""Other forms of a feature set: one a file. Adding one: its class, and a line here."""

from pathlib import Path

from store.errors import StoreError, unknown
from store.exchange.exchange import Exchange, Exported, import_from
from store.exchange.hdf5 import Hdf5
from store.exchange.npy import Npy
from store.exchange.webdataset import WebDataset

EXCHANGES: dict[str, Exchange] = {
    "hdf5": Hdf5(),
    "npy": Npy(),
    "webdataset": WebDataset(),
}

__all__ = ["EXCHANGES", "Exchange", "Exported", "form_of", "get_exchange", "import_from"]


def get_exchange(name: str) -> Exchange:
    if name not in EXCHANGES:
        raise StoreError(unknown("form of exchange", name, EXCHANGES))
    return EXCHANGES[name]


def form_of(source: Path) -> Exchange:
    """The form of an export, by its looks."""
    if not source.exists():
        raise StoreError(f"there is no {source}; name what `beyondcls store export` wrote")
    for form in EXCHANGES.values():
        if form.fits(source):
            return form
    expected = ", ".join(f"{form.name} ({form.looks})" for form in EXCHANGES.values())
    raise StoreError(f"{source} does not look like an exported feature set; expected {expected}; name its form with --from")
