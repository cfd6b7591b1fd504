"""What kernels need on an A100, H100 and B200: hardly any register is spilled, and a block fits."""

import pytest
from packaging.version import Version

from store import kernels
from tests.kernels.compiling import SHARED_NBYTES, TARGETS, Resources, resources_of

triton = pytest.importorskip("triton", reason="there are no kernels without Triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        Version(triton.__version__) < Version(kernels.TRITON),
        reason=f"Triton {triton.__version__} does not compile them, {kernels.TRITON} does",
    ),
]

# Most bytes that versions of Triton spill: anywhere, other versions 64; and to unpack int4 on an A100, others 112.
ANYWHERE = {(3, 7): 104}
INT4_ON_AN_A100 = {(3, 6): 288, (3, 8): 80}
MODULES = {"attention": "tests.kernels.attention_cases", "pooling": "tests.kernels.pooling_cases"}


@pytest.fixture(scope="module")
def needs() -> dict[str, dict[tuple[str, int], Resources]]:
    """By kernel; by case and target. One process compiles all."""
    return dict(zip(MODULES, resources_of(*MODULES.values()), strict=True))


@pytest.mark.parametrize("kernel", MODULES)
def test_no_register_is_spilled(kernel: str, needs: dict[str, dict[tuple[str, int], Resources]]) -> None:
    """Or a few, and some more to unpack int4."""
    version = Version(triton.__version__).release[:2]
    assert {target for _, target in needs[kernel]} == set(TARGETS)
    for (name, target), one in needs[kernel].items():
        most = 80 if "int4" in name else ANYWHERE.get(version, 64)
        if "int4" in name and target == 80:
            most = INT4_ON_AN_A100.get(version, 112)
        assert one.spilled <= most, (name, target, one)


def test_a_block_of_attention_fits(needs: dict[str, dict[tuple[str, int], Resources]]) -> None:
    for (name, target), one in needs["attention"].items():
        assert one.registers * 32 * 8 <= 65536, (name, target, one)
        assert one.shared <= SHARED_NBYTES[target], (name, target, one)


def test_two_blocks_of_pooling_fit(needs: dict[str, dict[tuple[str, int], Resources]]) -> None:
    for (name, target), one in needs["pooling"].items():
        assert one.shared <= SHARED_NBYTES[target] // 2, (name, target, one)
