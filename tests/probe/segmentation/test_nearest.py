"""The search for the nearest patches against a full comparison, where few blocks have anything nearer."""

import pytest
import torch

from probe.segmentation.neighbours import nearest_rows


@pytest.mark.parametrize("threads", [1, 2])
def test_as_a_full_comparison(threads):
    torch.manual_seed(0)
    before = torch.get_num_threads()
    references, queries = torch.randn(3001, 8), torch.randn(700, 8)
    references[2000:2500] = references[:500]  # equally near: the lower row comes first
    references[100] = 0  # has no direction
    try:
        torch.set_num_threads(threads)
        found = nearest_rows(queries, references.split(512), 5, ("euclidean", "cosine"))
    finally:
        torch.set_num_threads(before)
    cosine = torch.nn.functional.normalize(queries.double()) @ torch.nn.functional.normalize(references.double()).T
    for metric, similarity in (("euclidean", -torch.cdist(queries.double(), references.double())), ("cosine", cosine)):
        similarity[:, 2000:2500] -= 1e-12
        pairs = torch.isin(found[metric][:, 1:] - found[metric][:, :-1], torch.tensor(2000))
        assert pairs.any(), metric
        assert torch.equal(found[metric][:, :4], similarity.topk(4).indices), metric
