"""What holds for every measure of the registries (beyondcls.testing)."""

import pytest

from beyondcls.testing.checking import run
from beyondcls.testing.metrics import MULTILABEL_CHECKS, PER_IMAGE_CHECKS
from probe.metrics import MULTILABEL, PER_IMAGE


@pytest.mark.parametrize("check", PER_IMAGE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", PER_IMAGE)
def test_of_one_label(name, check):
    run([check], name)


@pytest.mark.parametrize("check", MULTILABEL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MULTILABEL)
def test_of_several_labels(name, check):
    run([check], name)
