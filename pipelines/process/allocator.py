"""The C library's allocator, tuned for large blocks that are allocated again and again."""

import ctypes
import platform

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
LIMIT = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let glibc keep memory that is freed, for the whole process; false where there is no glibc.

    On a CPU every layer of a ViT, and every step of a grid of heads, allocates tens of MB. By default glibc takes them from the
    system and gives them back each time, and the system has to clear every page: a third more images per second without that.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    return all(
        libc.mallopt(name, value) for name, value in ((MMAP_THRESHOLD, LIMIT), (TRIM_THRESHOLD, LIMIT), (TOP_PAD, 64 << 20))
    )
