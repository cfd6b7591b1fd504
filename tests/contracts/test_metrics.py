"""What holds for every measure of the registries."""

import warnings

import pytest
import torch

from probe.metrics import METRICS, MULTILABEL, PER_IMAGE

K = 12


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [2, 3, 20, K] of six members, with ties, and the classes of 20 images."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(9, (2, 3, 20, K), generator=generator) / 2 - 2, torch.randint(K, (20,), generator=generator)


def several(levels: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [2, 3, 60, 5] of six members with about 60 / levels ties each, and labels of which every class has some."""
    generator = torch.Generator().manual_seed(levels)
    labels = (torch.rand(60, 5, generator=generator) < 0.3).to(torch.uint8)
    return torch.randint(levels, (2, 3, 60, 5), generator=generator) / 7 - levels / 14, labels


def perfect(labels: torch.Tensor) -> torch.Tensor:
    """Logits of a head that knows each image's class, all others ruled out."""
    return torch.full((len(labels), K), -torch.inf).scatter(1, labels[:, None], 1.0)


@pytest.mark.parametrize("name", PER_IMAGE)
class TestOneLabel:
    def test_many_members_at_once_are_each_of_them(self, name):
        logits, labels = drawn()
        hits = PER_IMAGE[name](logits, labels)
        assert (hits.shape, hits.dtype) == ((2, 3, 20), torch.bool)
        for members, member_hits in zip(logits.flatten(0, 1), hits.flatten(0, 1), strict=True):
            assert torch.equal(member_hits, PER_IMAGE[name](members, labels))
            assert METRICS[name](members, labels) == pytest.approx(100 * member_hits.double().mean().item())

    def test_each_image_is_judged_alone(self, name):
        logits, labels = drawn()
        order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
        assert torch.equal(PER_IMAGE[name](logits[..., order, :], labels[order]), PER_IMAGE[name](logits, labels)[..., order])

    def test_who_knows_every_class_has_all_of_it(self, name):
        _, labels = drawn()
        assert METRICS[name](perfect(labels), labels) == 100

    def test_who_says_the_same_of_every_class_does_not(self, name):
        assert METRICS[name](torch.zeros(K, K), torch.arange(K)) < 50

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_logits_that_are_no_numbers_are_wrong(self, name, value):
        _, labels = drawn()
        for at in (labels, (labels + 1) % K):
            assert not PER_IMAGE[name](perfect(labels).scatter(1, at[:, None], value), labels).any()

    def test_leaves_what_it_is_given_as_it_is(self, name):
        given, same = drawn(), drawn()
        PER_IMAGE[name](*given)
        assert all(torch.equal(one, other) for one, other in zip(given, same, strict=True))


@pytest.mark.parametrize("name", MULTILABEL)
class TestSeveralLabels:
    @pytest.mark.parametrize("levels", [2, 9, 1000])
    def test_many_members_at_once_are_each_of_them(self, name, levels):
        scores, labels = several(levels)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            together = MULTILABEL[name](scores, labels)
        assert (together.shape, together.dtype) == ((2, 3), torch.float64)
        assert together.flatten().tolist() == pytest.approx([MULTILABEL[name](m, labels).item() for m in scores.flatten(0, 1)])
        assert 0 <= together.min() <= together.max() <= 100
        assert len(together.unique()) > 1

    def test_neither_images_nor_classes_have_an_order(self, name):
        scores, labels = several()
        generator = torch.Generator().manual_seed(1)
        rows, classes = torch.randperm(60, generator=generator), torch.randperm(5, generator=generator)
        moved = MULTILABEL[name](scores[..., rows, :][..., classes], labels[rows][:, classes])
        torch.testing.assert_close(moved, MULTILABEL[name](scores, labels))

    def test_who_knows_every_label_has_all_of_it_and_who_knows_half_of_them_half_as_well(self, name):
        _, labels = several()
        known = labels.float() - 0.5
        half = torch.where(torch.arange(60)[:, None] < 30, known, -known)
        assert MULTILABEL[name](known, labels) == pytest.approx(100)
        assert 20 < MULTILABEL[name](half, labels) < 80

    @pytest.mark.parametrize("value", [torch.nan, 0.0])
    def test_one_score_for_all_is_less_than_knowing(self, name, value):
        _, labels = several()
        known = MULTILABEL[name](torch.full((60, 5), value), labels)
        assert 0 <= known <= 100
        assert known < 100 or not value  # who predicts every class has found all that there are

    def test_a_class_that_no_image_has_leaves_a_number(self, name):
        scores, labels = several()
        labels[:, 1] = 0
        assert MULTILABEL[name](scores, labels).isfinite().all()

    def test_leaves_what_it_is_given_as_it_is(self, name):
        given, same = several(), several()
        MULTILABEL[name](*given)
        assert all(torch.equal(one, other) for one, other in zip(given, same, strict=True))
