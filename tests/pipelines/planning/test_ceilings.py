"""Ceilings of each resource, counted by hand."""

import pytest
import torch

from extract.encoders.cost import Cost
from pipelines.planning.ceilings import CEILINGS, Demand, ceilings, ceilings_line, ceilings_table
from pipelines.planning.gpus import DEFAULT, GPUS, Gpu, gpu_of

# 400 operations a second of 1,000; 2,000 bytes a second of memory; 600 over the link.
GPU = Gpu("a GPU", 1000, 2000, 600)
# 3 x 10 x 10 bytes of pixels, 100 bytes of features.
DEMAND = Demand(Cost(flops=20, moved_nbytes=90, weights_nbytes=1280), (3, 10, 10), 100)


def test_each_resource_by_itself() -> None:
    allowed = ceilings(DEMAND, GPU, decoded_per_s=7, written_per_s=500)
    assert allowed == {"decoding": 7, "PCIe": 2, "FLOP/s": 20, "memory": 20, "writing": 5}
    more_out_than_in = Demand(DEMAND.cost, (3, 2, 2), 100)
    assert ceilings(more_out_than_in, GPU, 7, 500)["PCIe"] == 6


@pytest.mark.parametrize("binding", CEILINGS)
def test_the_lowest_binds(binding: str) -> None:
    allowed = {
        "decoding": ceilings(DEMAND, GPU, 1, 500),
        "PCIe": ceilings(DEMAND, GPU, 7, 500),
        "FLOP/s": ceilings(DEMAND, Gpu("a GPU", 1, 2000, 6000), 7, 500),
        "memory": ceilings(DEMAND, Gpu("a GPU", 1000, 20, 6000), 7, 500),
        "writing": ceilings(DEMAND, GPU, 7, 50),
    }[binding]
    assert min(allowed, key=lambda resource: allowed[resource]) == binding


def test_a_vit_b_on_an_h100_writes_more_than_a_disk_takes() -> None:
    """35 GFLOP an image; 196 tokens of 768 numbers in float16."""
    of_vit_b = Demand(Cost(35_126_120_448, 140_417_780, 171_597_312), (3, 224, 224), 2 * 196 * 768)
    head, row, words = ceilings_table({"vit-b": of_vit_b}, {"vit-b": 4000.0}, 1e9, GPUS["h100"])
    assert head.split()[:4] == ["images/s", "with", "an", "H100"]
    assert row.split() == ["vit-b", "4,000", "209,263", "11,262", "23,632", "3,322", "writing", "3.39", "GB/s"]
    assert "40% of 989 TFLOP/s" in words
    assert ceilings_line(of_vit_b, GPUS["h100"], 4000.0, 1e9) == (
        "writing, at 3,322 crops/s with an H100, 989 TFLOP/s in bf16 (decoding 4,000, PCIe 209,263, FLOP/s 11,262, "
        "memory 23,632, writing 3,322); an H100 alone would make 11,262, which write 3.39 GB/s"
    )


def test_an_encoder_whose_operations_were_not_counted() -> None:
    unknown = Demand(None, (3, 10, 10), 100)
    _, row, _ = ceilings_table({"e": unknown}, {"e": 7.0}, 500, GPU)
    assert row.split() == ["e", "7", "2", "not", "counted", "not", "counted", "5", "PCIe", "200", "B/s"]
    assert "FLOP" not in ceilings_line(unknown, GPU, 7, 500).split("(")[1]


def test_the_gpu_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_of(torch.device("cpu")) == DEFAULT == "a100"
    for called, name in (
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce GTX 1080", DEFAULT),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, called=called: called)
        assert gpu_of(torch.device("cuda")) == name
