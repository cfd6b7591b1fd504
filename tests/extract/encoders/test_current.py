"""The table of docs/encoders.md: which encoders of today work by their names in timm, and what of them."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import timm
import torch

from extract.attention import PER_BLOCK, STATISTICS, facts_of
from extract.encoders import ENCODERS, load_encoder, timm_names
from store import BeyondClsError
from tests.extract.encoders.official import assert_is_the_model
from tests.extract.tiny import tiny_encoder

PAGE = Path(__file__).resolve().parents[3] / "docs/encoders.md"


class Row(NamedTuple):
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

    def need(self) -> None:
        """Newer models say which timm has them."""
        if self.name not in ENCODERS and not timm.is_model(self.architecture):
            assert re.search(r"timm 1\.0\.\d+ or newer", self.note), "say which timm has it"
            pytest.skip(f"timm {timm.__version__} has no {self.architecture}")


TEXT = PAGE.read_text(encoding="utf-8")
LINES = TEXT[TEXT.index("| encoder | name |") :].partition("\n\n")[0].splitlines()[2:]
ROWS = [Row(*(cell.strip().strip("`") for cell in line.strip("|").split("|"))) for line in LINES]


@pytest.mark.parametrize("row", [row for row in ROWS if row.statistics != "not supported"], ids=lambda row: row.name)
def test_supported(row):
    row.need()
    model, further = (
        row.name if row.name in ENCODERS else row.architecture,
        {"num_kv_heads": 1} if "sapiens" in row.name else {},
    )
    encoder = tiny_encoder(model=model, **further)
    has_cls = encoder.layout.has_cls
    assert {*encoder.statistics} == {name for name in (*STATISTICS, *PER_BLOCK) if has_cls or not facts_of(name).of_cls}
    described = ("yes" if has_cls else "no", str(encoder.layout.n_registers))
    described += ({"token": "[cls]", "avg": "average", "map": "attention", "": "none"}[encoder.model.global_pool],)
    described += (
        "all" if has_cls else "of patches",
        "last" if encoder.block == encoder.n_blocks - 1 else f"block {encoder.block}",
    )
    assert described == (row.cls, row.registers, row.pooling, row.statistics, row.read)
    assert ("final norm" in row.note) == (not encoder.norm()[0]), "which heads can apply"
    assert_is_the_model(encoder)
    if row.name not in ENCODERS:
        config = timm.get_pretrained_cfg(row.name)
        assert (config.tag, bool(config.hf_hub_id)) == (row.name.partition(".")[2], True), "it has weights"
        assert "quickgelu" in row.name or not any("QuickGELU" in note for note in config.notes or ()), "as it was trained"
        assert row.architecture in timm_names(), "names that are misspelt are compared with these"


@pytest.mark.parametrize("row", [row for row in ROWS if row.statistics == "not supported"], ids=lambda row: row.name)
def test_refused(row):
    """The message names the model, why, and what to use."""
    row.need()
    message = r"mine is not a plain ViT: \w+ is not supported, as .*; choose "
    with torch.device("meta"), pytest.raises(BeyondClsError, match=message):
        load_encoder("mine", model=row.architecture, random_seed=0)
