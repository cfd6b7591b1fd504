"""Reading a data set's bytes and decoding them. What keeps bytes from being read says nothing about an image: it is tried
again, and then stops the run. Damage is only what a decoder says of bytes that were read.
"""

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from extract.datasets.opening import made_of
from store import BeyondClsError

T = TypeVar("T")
PAUSES = (0.1, 1.0, 4.0)  # seconds before another try: a network file system comes back, other decoders give memory back
CHANGED = "it has changed since the data set was opened; run again when nothing writes to it"
NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)  # a name leads to no file, on any disk
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)  # another try would end alike


class Damage(Exception):
    """What a decoder says of bytes; the message is the same each time."""


def patiently(work: Callable[[], T], what: str) -> T:
    """The result of some work, which is tried a few times where the machine, not the data, is at fault.

    Args:
        work: raises OSError or MemoryError where the machine fails.
        what: is read, for the message.

    Raises:
        BeyondClsError: it fails each time; or what is read is not there, or may not be read.
    """
    try:
        return tried(work)
    except (OSError, MemoryError) as error:
        reason = "memory does not suffice" if isinstance(error, MemoryError) else error.strerror or reason_of(error)
        raise BeyondClsError(
            f"{what} cannot be read: {reason}. That says nothing about the image, so the run stops and nothing is recorded; "
            "look at the disk, the network or the memory of this machine, and give the same command again"
        ) from error


def tried(work: Callable[[], T]) -> T:
    """The same, with the error of the last try."""
    for pause in PAUSES:
        try:
            return work()
        except FINAL:
            raise
        except (OSError, MemoryError):
            time.sleep(pause)
    return work()


def content_of(file: Path) -> bytes | None:
    """All bytes of a file; None if there is none of this name.

    Raises:
        BeyondClsError: as `patiently`.
    """

    made_of(file)

    def work() -> bytes | None:
        try:
            return file.read_bytes()
        except OSError as error:
            if error.errno in NOWHERE:
                return None
            raise

    return patiently(work, str(file))


def read_range(file: Path, offset: int, nbytes: int) -> bytes:
    """`nbytes` bytes of a file.

    Raises:
        OSError: they cannot be read.
        BeyondClsError: the file has become shorter.
    """
    with file.open("rb") as source:
        content = os.pread(source.fileno(), nbytes, offset)
        while len(content) < nbytes and (more := os.pread(source.fileno(), nbytes - len(content), offset + len(content))):
            content += more
    if len(content) < nbytes:
        raise BeyondClsError(f"{file} ends after {offset + len(content)} bytes, expected {offset + nbytes}; {CHANGED}")
    return content


def decoded(decode: Callable[[bytes], T], encoded: bytes, what: str) -> T:
    """What a decoder makes of bytes.

    Raises:
        Damage: they are damaged, or of an unknown form.
        BeyondClsError: memory does not suffice.
    """

    def work() -> T:
        try:
            return decode(encoded)
        except MemoryError:
            raise
        except Exception as error:  # PIL raises many kinds
            if "out of memory" in str(error):  # a decoder in C
                raise MemoryError(str(error)) from error
            raise Damage(reason_of(error)) from error

    return patiently(work, what)


def reason_of(error: Exception) -> str:
    """What an error says, without addresses in memory, which differ from run to run; never empty."""
    return re.sub(r"\s*<[^<>]* at 0x[0-9a-fA-F]+>", "", str(error)).strip() or type(error).__name__
