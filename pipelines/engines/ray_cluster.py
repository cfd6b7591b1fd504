"""A Ray cluster: how it is reached, and what its nodes have."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

from store import BeyondClsError

CORES = 4  # of a worker without a GPU, where nodes have as many
PACKAGES = Path(__file__).resolve().parents[2]  # Ray has workers import from the folder in which it is initialised
TOKEN = (
    "put the cluster's token into ~/.ray/auth_token or RAY_AUTH_TOKEN, on this machine and with RAY_AUTH_MODE=token; or unset "
    "RAY_AUTH_MODE, if the cluster has none"
)


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected to a cluster, unless this process is so already.

    Args:
        address: None: that in RAY_ADDRESS, or of a cluster that is started on this machine for as long.

    Raises:
        BeyondClsError: there is no such cluster, or it does not let us in.
    """
    import ray

    connects = not ray.is_initialized()
    if connects:
        named = address or "the address in RAY_ADDRESS"
        try:
            with chdir(PACKAGES):
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ray.exceptions.RayError as error:  # of authentication
            raise BeyondClsError(f"the Ray cluster at {named} cannot be used ({error}); {TOKEN}") from error
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BeyondClsError(
                f"no Ray cluster can be used at {named} ({error}); start one with `ray start --head`, correct --address, or "
                f"leave it out: then one is started on this machine. If it asks for a token: {TOKEN}"
            ) from error
    try:
        yield
    finally:
        if connects:
            ray.shutdown()


def resources() -> list[dict[str, float]]:
    """Of each node that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@dataclass(frozen=True)
class Share:
    """What a worker gets of a node.

    Attributes:
        cores: as Ray counts them.
        gpus: 1, or 0 where workers compute on the CPU.
    """

    cores: int
    gpus: int

    @classmethod
    def of_each(cls, device: str, tasks: int | None, nodes: Sequence[dict[str, float]]) -> "Share":
        """A GPU for each worker, or if there are none four cores, or fewer if there are to be more `tasks`.

        Args:
            device: auto, cpu or cuda.
        """
        if device == "cuda" or (device == "auto" and any(node.get("GPU", 0) >= 1 for node in nodes)):
            return cls(1, 1)
        cores = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1] or [1]
        return cls(max(1, min(CORES, *cores, sum(cores) // (tasks or 1))), 0)

    @property
    def n_threads(self) -> int | None:
        """Of torch on a CPU: Ray sets OMP_NUM_THREADS itself, and the last bits of results depend on it."""
        return None if self.gpus else int(os.environ.get("OMP_NUM_THREADS") or self.cores)
