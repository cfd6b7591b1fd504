"""Which files hold images that are read here: by the ending of a name, or else by the first bytes."""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from PIL import Image

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "gif", "tif", "tiff")  # of most images; others are Pillow's
# Formats of Pillow that are drawings, which Ghostscript or Windows would have to run, or that it can only recognise.
NO_PIXELS = {"EPS", "WMF", "MPEG", "HDF5", "GRIB", "BUFR", "IPTC"}
# Images that Pillow reads with a package, or a version, that may not be here.
PACKAGES = {
    **dict.fromkeys(("heic", "heif", "hif"), "pillow-heif"),
    "avif": "'pillow>=11.3'",
    "jxl": "pillow-jxl-plugin",
}
# Pictures that cannot be read: of raw sensors, drawings, scans, layers and scenes.
UNREAD = {
    "cr2", "cr3", "nef", "nrw", "arw", "dng", "orf", "rw2", "raf", "pef", "srw", "svg", "svgz", "eps", "ps", "ai", "wmf", "emf",
    "xcf", "kra", "dcm", "dicom", "exr", "hdr", "nii", "psb",
}  # fmt: skip
# What lies beside images; it is not looked into.
SIDECARS = {
    "txt", "json", "jsonl", "xml", "csv", "tsv", "npy", "npz", "pt", "cls", "md", "html", "yaml", "yml", "py", "ipynb", "log",
    "tar", "zip", "gz", "parquet",
}  # fmt: skip
HEAD_NBYTES = 32
SIGNATURE = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM....\0{4}|II[*+]\0|MM\0[*+]|RIFF....WEBP|P[1-6]\s+[#\d]"
    rb"|....ftyp(?:avif|avis|heic|heix|heim|hevc|mif1|msf1)|\0{3}\x0cjP  \r\n|\xff\x4f\xff\x51|\0{3}\x0cJXL ",
    re.DOTALL,
)


@cache
def readable() -> tuple[tuple[str, ...], frozenset[str]]:
    """Formats that are decoded, by name, and the extensions of their files: of Pillow, and of its packages that are here."""
    Image.init()
    with suppress(ImportError):
        import pillow_heif  # type: ignore[import-not-found]

        pillow_heif.register_heif_opener()
    with suppress(ImportError):
        import pillow_jxl  # type: ignore[import-not-found]  # noqa: F401  # registers itself
    formats = [name for name in Image.OPEN if name not in NO_PIXELS]
    of_formats = {end.removeprefix(".") for end, name in Image.registered_extensions().items() if name in formats}
    return tuple(formats), frozenset({*IMAGE_EXTENSIONS, *of_formats})


def extension(name: str) -> str:
    """What follows the last dot of a file's name, in small letters; empty without a dot."""
    return name.rpartition("/")[2].rpartition(".")[2].lower() if "." in name.rpartition("/")[2] else ""


def is_image(name: str) -> bool:
    """Whether a file's name ends like that of an image that is read, or would be with another package."""
    end = extension(name)
    return end in IMAGE_EXTENSIONS or end in PACKAGES or end in readable()[1]


def image_id(name: str) -> str:
    """The id of an image in a folder: its path without the extension, if that is one of images."""
    return name[: -len(extension(name)) - 1] if is_image(name) and not name.rpartition("/")[2].startswith(".") else name


def missing_reader(name: str) -> str | None:
    """What is wrong with an image of this name, if its format cannot be read without a package that is not installed."""
    end = extension(name)
    if end not in PACKAGES or end in readable()[1]:
        return None
    return f"is of a format (.{end}) that Pillow does not read here: pip install {PACKAGES[end]}"


def is_picture(name: str, head: Callable[[int], bytes]) -> bool:
    """Whether a file is an image by its name, or else by its first bytes, which `head` gives; of sidecars it is not asked."""
    if is_image(name) or extension(name) in SIDECARS | UNREAD:
        return is_image(name)
    return SIGNATURE.match(head(HEAD_NBYTES)) is not None
