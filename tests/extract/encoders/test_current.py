"""The table of docs/encoders.md: which encoders of today work by their names in timm, and what of them."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch

from extract.attention import PER_BLOCK, STATISTICS, facts_of
from extract.encoders import ENCODERS, Encoder, load_encoder, timm_names
from store import BeyondClsError
from tests.extract.attention.untouched import assert_attention_of_the_model, assert_tokens_of_the_model
from tests.extract.tiny import tiny_encoder

PAGE = Path(__file__).resolve().parents[3] / "docs/encoders.md"
NOT_SUPPORTED = "not supported"
FURTHER: dict[str, dict[str, Any]] = {"sapiens": {"num_kv_heads": 1}}  # arguments beside those of a tiny model
EVERY = {*STATISTICS, *PER_BLOCK}


class Row(NamedTuple):
    """A line of the table, as it is on the page."""

    encoder: str
    name: str
    cls: str
    registers: str
    pooling: str
    statistics: str
    read: str
    note: str

    @property
    def architecture(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_here(self) -> bool:
        """Newer models say which timm has them."""
        return self.name in ENCODERS or timm.is_model(self.architecture)


def rows() -> list[Row]:
    text = PAGE.read_text(encoding="utf-8")
    lines = text[text.index("| encoder | name |") :].partition("\n\n")[0].splitlines()[2:]
    return [Row(*(cell.strip().strip("`") for cell in line.strip("|").split("|"))) for line in lines]


ROWS = rows()
SUPPORTED = [row for row in ROWS if row.statistics != NOT_SUPPORTED]
REFUSED = [row for row in ROWS if row.statistics == NOT_SUPPORTED]


def tiny(row: Row) -> Encoder:
    """Its architecture with random weights, at a size that takes no time."""
    if not row.is_here:
        assert re.search(r"timm 1\.0\.\d+ or newer", row.note), "say which timm has it"
        pytest.skip(f"timm {timm.__version__} has no {row.architecture}")
    further = next((arguments for part, arguments in FURTHER.items() if part in row.name), {})
    return tiny_encoder(model=row.name if row.name in ENCODERS else row.architecture, **further)


@pytest.mark.parametrize("row", SUPPORTED, ids=lambda row: row.name)
class TestSupported:
    def test_is_as_the_page_says(self, row):
        encoder = tiny(row)
        statistics = EVERY if encoder.layout.has_cls else {name for name in EVERY if not facts_of(name).of_cls}
        assert set(encoder.statistics) == statistics
        pooling = {"token": "[cls]", "avg": "average", "map": "attention", "": "none"}
        described = ("yes" if encoder.layout.has_cls else "no", str(encoder.layout.n_registers))
        described += (pooling[encoder.model.global_pool], "all" if encoder.layout.has_cls else "of patches")
        described += ("last" if encoder.block == encoder.n_blocks - 1 else f"block {encoder.block}",)
        assert described == (row.cls, row.registers, row.pooling, row.statistics, row.read)
        assert ("final norm" in row.note) == (not encoder.norm()[0]), "which heads can apply"

    def test_attention_and_tokens_are_those_of_the_model(self, row):
        assert_tokens_of_the_model(tiny(row))
        assert_attention_of_the_model(tiny(row))

    def test_the_name_has_weights(self, row):
        if row.name not in ENCODERS and row.is_here:
            config = timm.get_pretrained_cfg(row.name)
            assert config.tag == row.name.partition(".")[2]
            assert config.hf_hub_id
            assert "quickgelu" in row.name or not any("QuickGELU" in note for note in config.notes or ()), "as it was trained"
            assert row.architecture in timm_names(), "names that are misspelt are compared with these"


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_refused(row):
    """The message names the model, why, and what to use."""
    if not row.is_here:
        pytest.skip(f"timm {timm.__version__} has no {row.architecture}")
    message = r"mine is not a plain ViT: \w+ is not supported, as .*; choose "
    with torch.device("meta"), pytest.raises(BeyondClsError, match=message):
        load_encoder("mine", model=row.architecture, random_seed=0)
