"""What a place is: files of feature sets below one address, on this machine or in an object store."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

PIECE_NBYTES = 1 << 20  # enough for a disk to be at full speed, little enough to stay in the processor's cache


class ShardFile(ABC):
    """One shard, opened for reading at any offset, by several threads at once."""

    @abstractmethod
    def read(self, offset: int, nbytes: int, scratch: memoryview) -> memoryview:
        """`nbytes` bytes from `offset`; they may be in `scratch`, or end early where the file does.

        `scratch` is page-aligned and at least `nbytes` + 2 · ALIGNMENT long.
        """

    def read_into(self, offset: int, views: list[memoryview]) -> bool:
        """Fill `views` one after the other from `offset`, without a copy in between; False if that is not possible."""
        return False


class Place(ABC):
    """Files by their path below one address, how they want to be read, and how they are written.

    Attributes:
        piece_nbytes: most bytes of one read.
        requests: reads in flight; more than one where each waits for a network.
        block_nbytes: neighbours that a shuffled epoch keeps together; None: as few as make a disk fast.
    """

    piece_nbytes = PIECE_NBYTES
    requests = 1
    block_nbytes: int | None = None

    @abstractmethod
    def address(self, name: str = "") -> str:
        """The address of a file, or of the place itself; for messages, too."""

    @abstractmethod
    def content(self, name: str) -> bytes | None:
        """All of a small file; None if there is none."""

    def expect(self, names: Iterable[str]) -> None:  # noqa: B027, a disk needs no warning
        """Announce small files whose content will be asked for soon."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""

    @abstractmethod
    def has_folder(self, name: str) -> bool:
        """Whether there is a file below this path."""

    @abstractmethod
    def open(self, name: str, direct: bool | None = False) -> ShardFile:
        """A shard.

        Args:
            direct: bypass the page cache; None does so unless most of the file is in it.

        Raises:
            StoreError: it is missing or cannot be read.
        """

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Bytes of each file that exists now, by its path."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of what is directly below the address now, sorted; empty where there is nothing, or listing is not allowed.

        Raises:
            StoreError: the service does not answer.
        """

    @abstractmethod
    def put(self, name: str, parts: Iterable[memoryview | bytes], nbytes: int) -> None:
        """Write a file of `nbytes` bytes, its parts one after the other. It appears whole, or not at all.

        Raises:
            StoreError: it cannot be written.
        """
