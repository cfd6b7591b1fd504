"""What holds for every metric, by name: of one label an image, and of several."""

import warnings

import torch
from torch import Tensor

from beyondcls.testing.checking import expect, expect_close
from probe.metrics import MULTILABEL, PER_IMAGE

K = 12


def drawn(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [2, 3, 20, K] of six members, with ties, and the classes of 20 images."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(9, (2, 3, 20, K), generator=generator) / 2 - 2, torch.randint(K, (20,), generator=generator)


def several(levels: int = 9) -> tuple[Tensor, Tensor]:
    """Scores [2, 3, 60, 5] of six members with about 60 / levels ties each, and labels of which every class has some."""
    generator = torch.Generator().manual_seed(levels)
    labels = (torch.rand(60, 5, generator=generator) < 0.3).to(torch.uint8)
    return torch.randint(levels, (2, 3, 60, 5), generator=generator) / 7 - levels / 14, labels


def perfect(labels: Tensor) -> Tensor:
    """Logits of a head that knows each image's class, all others ruled out."""
    return torch.full((len(labels), K), -torch.inf).scatter(1, labels[:, None], 1.0)


def many_members_at_once_are_each_of_them(name: str) -> None:
    logits, labels = drawn()
    hits = PER_IMAGE[name](logits, labels)
    shown = f"it gives {list(hits.shape)} {hits.dtype} of logits [2, 3, 20, {K}], expected [2, 3, 20] torch.bool"
    expect((hits.shape, hits.dtype) == ((2, 3, 20), torch.bool), shown)
    for members, member_hits in zip(logits.flatten(0, 1), hits.flatten(0, 1), strict=True):
        expect(torch.equal(member_hits, PER_IMAGE[name](members, labels)), "a member alone is judged otherwise")


def each_image_is_judged_alone(name: str) -> None:
    logits, labels = drawn()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    moved = PER_IMAGE[name](logits[..., order, :], labels[order])
    expect(torch.equal(moved, PER_IMAGE[name](logits, labels)[..., order]), "the order of images matters")


def who_says_the_same_of_every_class_does_not(name: str) -> None:
    share = PER_IMAGE[name](torch.zeros(K, K), torch.arange(K)).double().mean().item()
    expect(share < 0.5, f"equal logits of all classes are right for {share:.0%} of the images")


def who_knows_every_class_is_right_unless_a_logit_is_no_number(name: str) -> None:
    _, labels = drawn()
    expect(PER_IMAGE[name](perfect(labels), labels).all(), "a head that knows every class is wrong of some")
    for value in (torch.nan, torch.inf):
        for at in (labels, (labels + 1) % K):
            hits = PER_IMAGE[name](perfect(labels).scatter(1, at[:, None], value), labels)
            expect(not hits.any(), f"an image with a logit of {value} counts as right")


def leaves_what_it_is_given_as_it_is(name: str) -> None:
    metric, make = (MULTILABEL[name], several) if name in MULTILABEL else (PER_IMAGE[name], drawn)
    given, same = make(), make()
    metric(*given)
    expect(all(torch.equal(one, other) for one, other in zip(given, same, strict=True)), "logits or labels were changed")


def members_of_many_labels_at_once_are_each_of_them(name: str) -> None:
    for levels in (2, 9, 1000):
        scores, labels = several(levels)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            together = MULTILABEL[name](scores, labels)
        shown = f"it gives {list(together.shape)} {together.dtype} of scores [2, 3, 60, 5], expected [2, 3] torch.float64"
        expect((together.shape, together.dtype) == ((2, 3), torch.float64), shown)
        alone = torch.stack([MULTILABEL[name](m, labels) for m in scores.flatten(0, 1)])
        expect_close(together.flatten(), alone, "members alone", rtol=1e-6, atol=1e-12)
        expect(0 <= together.min() <= together.max() <= 100, f"values are from {together.min()} to {together.max()} percent")
        expect(len(together.unique()) > 1, "members that differ are all the same to it")


def neither_images_nor_classes_have_an_order(name: str) -> None:
    scores, labels = several()
    generator = torch.Generator().manual_seed(1)
    rows, classes = torch.randperm(60, generator=generator), torch.randperm(5, generator=generator)
    moved = MULTILABEL[name](scores[..., rows, :][..., classes], labels[rows][:, classes])
    expect_close(moved, MULTILABEL[name](scores, labels), "the order of images or classes matters")


def who_knows_half_of_the_labels_is_half_as_good(name: str) -> None:
    _, labels = several()
    known = labels.float() - 0.5
    half = torch.where(torch.arange(60)[:, None] < 30, known, -known)
    whole, part = (MULTILABEL[name](scores, labels).item() for scores in (known, half))
    expect(abs(whole - 100) < 1e-4, f"a head that knows every label has {whole} percent, expected 100")
    expect(20 < part < 80, f"a head that knows the labels of half of the images has {part} percent, expected 20 to 80")


def one_score_for_all_and_a_class_that_no_image_has_leave_a_number(name: str) -> None:
    scores, labels = several()
    for value in (torch.nan, 0.0):
        known = MULTILABEL[name](torch.full((60, 5), value), labels).item()
        expect(0 <= known <= 100, f"equal scores ({value}) have {known} percent")
        # Who predicts every class has found all that there are.
        expect(known < 100 or not value, f"equal scores ({value}) have all of it")
    labels[:, 1] = 0
    expect(MULTILABEL[name](scores, labels).isfinite().all(), "a class that no image has makes it no number")


PER_IMAGE_CHECKS = (
    many_members_at_once_are_each_of_them,
    each_image_is_judged_alone,
    who_says_the_same_of_every_class_does_not,
    who_knows_every_class_is_right_unless_a_logit_is_no_number,
    leaves_what_it_is_given_as_it_is,
)
MULTILABEL_CHECKS = (
    members_of_many_labels_at_once_are_each_of_them,
    neither_images_nor_classes_have_an_order,
    who_knows_half_of_the_labels_is_half_as_good,
    one_score_for_all_and_a_class_that_no_image_has_leave_a_number,
    leaves_what_it_is_given_as_it_is,
)
