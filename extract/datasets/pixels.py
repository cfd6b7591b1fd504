"""Which files hold images that are read here, by the ending of a name or else by the first bytes; and what their pixels are: 8
bits of red, green and blue, which is said where a file holds something else.
"""

import io
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

try:
    from simplejpeg import decode_jpeg
except ImportError:  # an extra
    decode_jpeg = None

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
# Files that lie among images; they are not opened.
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
ORIENTATION = 0x0112  # EXIF's tag; 1 is upright
Transpose = Image.Transpose
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
}  # fmt: skip
SIDEWAYS = (5, 6, 7, 8)  # of which width and height change places
TAGS = ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")  # in which Pillow looks for it
LOW_BYTES = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}  # by the order of 16-bit values
SIGNED_TIFF, SAMPLE_FORMAT = 2, 339
AT_ONCE = 4  # pixels that a process decodes at once, in images of the largest size that is opened
JPEG2000_SIZE = b"\xff\x4f\xff\x51"  # before the sizes of an image, 42 bytes of them before the depth of its first channel


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


class Room:
    """Limits the pixels that are in memory at once: an image that does not fit waits until others are done."""

    def __init__(self) -> None:
        self._taken, self._changed = 0, threading.Condition()

    @contextmanager
    def of(self, image: Image.Image) -> Iterator[None]:
        """Room for an image whose header was read; an image that is alone always fits."""
        n, limit = image.width * image.height, Image.MAX_IMAGE_PIXELS
        capacity = None if limit is None else AT_ONCE * 2 * limit  # Pillow opens images of up to twice its limit
        with self._changed:
            self._changed.wait_for(lambda: capacity is None or not self._taken or self._taken + n <= capacity)
            self._taken += n
        try:
            yield
        finally:
            with self._changed:
                self._taken -= n
                self._changed.notify_all()


ROOM = Room()


@dataclass(frozen=True)
class Raster:
    """The pixels of a JPEG where Pillow is not needed, which would copy them twice; it can do as much as views ask of an image.

    Attributes:
        pixels: [h, w, 3], red, green and blue.
        info: as that of the image that `Pixels.rgb` gives.
    """

    pixels: UInt8[np.ndarray, "h w 3"]
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int, int]:
        height, width, _ = self.pixels.shape
        return width, height

    def crop(self, box: tuple[float, float, float, float]) -> "Raster":
        x0, y0, x1, y1 = map(round, box)
        return Raster(self.pixels[y0:y1, x0:x1])

    @classmethod
    def of(cls, image: Image.Image, encoded: bytes) -> "Raster | None":
        """Those of a JPEG that Pillow has opened, equal to its own: both use libjpeg-turbo. None if Pillow must decode it."""
        orientation = orientation_of(image)
        try:
            pixels = decode_jpeg(encoded, colorspace="RGB", strict=True)
        except ValueError:  # it is damaged, and Pillow says how
            return None
        return cls(pixels, {"orientation": orientation} if orientation in TURNS else {})


Picture = Image.Image | Raster
T = TypeVar("T")


@dataclass(frozen=True)
class Pixels:
    """How values of a file become pixels.

    Attributes:
        scale: values of more than 8 bits that become 0 and 255; those between in proportion, rounded, others cut. Images of 8
            bits are not scaled. None: more than 8 bits are refused, unless all values are whole and within 0…255.
        orientation: "stored" leaves pixels as they are in the file (a TIFF is turned by Pillow, a HEIC by its decoder); "exif"
            turns them upright as EXIF says.
        max_pixels: of an image; None: Pillow's limit.
        least: width and height that a JPEG keeps at least, which is decoded at a half, a fourth or an eighth of its size where
            that suffices; `info["size"]` of the result has its own. None: all of it is decoded.
    """

    scale: tuple[float, float] | None = None
    orientation: str = "stored"
    max_pixels: int | None = None
    least: tuple[int, int] | None = None

    @classmethod
    def of(cls, transform: Mapping[str, Any], max_pixels: int | None = None) -> "Pixels":
        """As a transform describes them."""
        scale = transform.get("scale")
        return cls(None if scale is None else tuple(scale), transform.get("orientation", "stored"), max_pixels)

    @property
    def described(self) -> str:
        """What tells these pixels from those of a set that records nothing of them; empty if nothing does."""
        scale = "" if self.scale is None else "scale {:g} {:g} ".format(*self.scale)
        return scale + ("" if self.orientation == "stored" else self.orientation)

    def raise_limit(self) -> None:
        """Let Pillow, in this process, open images of `max_pixels`; it never lowers its limit."""
        if self.max_pixels is not None and Image.MAX_IMAGE_PIXELS is not None:
            Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, self.max_pixels)

    def decoded(self, encoded: bytes, held: ExitStack | None = None) -> Image.Image:
        """The RGB image that a file holds, as `rgb`; ValueError also where it has too many pixels.

        `held` keeps the image's room, which others wait for, until it is closed; without it, that ends with the decoding.
        """
        return self._decoded_in_room(encoded, held, self.rgb)

    def picture(self, encoded: bytes, held: ExitStack | None = None) -> Picture:
        """The same, as a `Raster` if it is a plain JPEG and simplejpeg is installed."""
        return self._decoded_in_room(encoded, held, self._raster_or_rgb)

    def _decoded_in_room(self, encoded: bytes, held: ExitStack | None, decode: Callable[[Image.Image, bytes], T]) -> T:
        self.raise_limit()
        try:
            image = Image.open(io.BytesIO(encoded), formats=readable()[0])
        except Image.DecompressionBombError as error:
            raise ValueError(f"{error}; if it is sound, raise the limit: --max-pixels") from error
        if self.max_pixels is not None and image.width * image.height > self.max_pixels:
            raise ValueError(f"it has {image.width} x {image.height} pixels, more than --max-pixels {self.max_pixels}")
        with ExitStack() as room:
            room.enter_context(ROOM.of(image))
            result = decode(image, encoded)
            if held is not None:
                held.enter_context(room.pop_all())
        return result

    def _raster_or_rgb(self, image: Image.Image, encoded: bytes) -> Picture:
        is_turned = self.orientation == "exif" and orientation_of(image) in TURNS
        is_whole = self.least is None or any(side < 2 * least for side, least in zip(image.size, self.least, strict=True))
        is_plain = image.format == "JPEG" and image.mode == "RGB" and not is_turned and is_whole
        raster = Raster.of(image, encoded) if is_plain and decode_jpeg is not None else None
        return self.rgb(image, encoded) if raster is None else raster

    def rgb(self, image: Image.Image, encoded: bytes = b"") -> Image.Image:
        """Red, green and blue of an image, of 8 bits; transparency is dropped.

        `info["orientation"]` of the result is what EXIF says and is not followed; it is absent for upright images. `encoded`
        is the file, if the image is not loaded yet. It is a ValueError that 8 bits cannot hold its values.
        """
        size = image.size
        if self.least is not None:
            image.draft(None, self.least)
        is_deep = image.mode[0] in "IF" or _would_clip(image, encoded)
        values = _deep_values(image, encoded) if is_deep else None
        image.load()
        orientation = orientation_of(image)
        if values is not None:
            image = Image.fromarray(self._to_bytes(values))
        # Pillow would copy what is RGB already, a sixth of the decoding; only pictures that users gave stay as they are.
        result = image if image.mode == "RGB" and encoded else image.convert("RGB")
        result.info = {}
        if orientation in TURNS and self.orientation == "exif":
            is_turned = orientation in SIDEWAYS
            result, size = result.transpose(TURNS[orientation]), size[::-1] if is_turned else size
        elif orientation in TURNS:
            result.info["orientation"] = orientation
        if self.least is not None:
            result.info["size"] = size
        return result

    def _to_bytes(self, values: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        lowest, highest = values.min(), values.max()
        shown = f"{lowest:g} to {highest:g}"
        if not (np.isfinite(lowest) and np.isfinite(highest)):
            raise ValueError(f"its values, {shown}, are not all numbers; write it again without NaN and infinities")
        if self.scale is not None:
            low, high = self.scale
            return np.rint((np.clip(values, low, high).astype(np.float64) - low) * (255 / (high - low))).astype(np.uint8)
        if values.dtype.kind == "f" or lowest < 0 or highest > 255:
            kind = {"f": "numbers with a point", "i": "signed integers"}.get(values.dtype.kind, "integers of more than 8 bits")
            full = 65535 if values.dtype.kind != "f" and lowest >= 0 and highest <= 65535 else highest
            raise ValueError(
                f"its values, {shown}, are {kind}, and 0 to 255 in 8 bits were expected; say which values become black and "
                f"white, for all images alike, e.g. --scale {min(lowest, 0):g},{full:g}"
            )
        return values.astype(np.uint8)


def orientation_of(image: Image.Image) -> int:
    """What the EXIF of an image says of its orientation; 1, upright, where it says nothing or cannot be read."""
    if image.format != "TIFF" and not any(name in image.info for name in TAGS):
        return 1  # Pillow would take as long to find that out as to decode a tiny image
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged tags say nothing; pixels may be sound
        return 1


def _would_clip(image: Image.Image, encoded: bytes) -> bool:
    """Whether Pillow would silently cut values to 8 bits, or wrap negative ones around."""
    tiles = [str(tile[3]) for tile in getattr(image, "tile", ())]
    if any(";16" in tile or "BC6" in tile for tile in tiles) or _is_signed(image):
        return True
    if image.format == "JPEG2000" and (at := encoded.find(JPEG2000_SIZE)) >= 0:
        return encoded[at + 42] & 0x7F > 7
    if image.format == "SGI":
        return encoded[3:4] == b"\2"  # bytes of a value
    return image.format == "PPM" and any(tile[3][1] > 255 for tile in image.tile if isinstance(tile[3], tuple))  # type: ignore[attr-defined]


def _is_signed(image: Image.Image) -> bool:
    return image.format == "TIFF" and image.mode == "L" and SIGNED_TIFF in image.tag_v2.get(SAMPLE_FORMAT, ())  # type: ignore[attr-defined]


def _deep_values(image: Image.Image, encoded: bytes) -> Shaped[np.ndarray, "..."]:
    """The values of an image of more than 8 bits, or negative ones: [h, w], or [h, w, 3]; ValueError if Pillow changes them."""
    if image.format == "PPM" and encoded[:2] in (b"P5", b"P6"):
        offset, n_channels = image.tile[0][2], 1 if encoded[1:2] == b"5" else 3  # type: ignore[attr-defined]
        values = np.frombuffer(encoded, ">u2", image.width * image.height * n_channels, offset)
        return values.reshape(image.height, image.width, *((3,) if n_channels == 3 else ()))
    if image.mode[0] in "IF" and encoded[:2] != b"P2":  # whose values Pillow multiplies
        values = np.asarray(image)
        is_unsigned = image.format == "TIFF" and SIGNED_TIFF not in image.tag_v2.get(SAMPLE_FORMAT, ())  # type: ignore[attr-defined]
        return values.view(np.uint32) if is_unsigned and values.dtype == np.int32 else values
    if _is_signed(image):
        return np.asarray(image).view(np.int8)
    if not encoded or any(str(_raw_mode(tile))[:-1] not in ("RGB;16", "RGBA;16") for tile in image.tile):  # type: ignore[attr-defined]
        raise ValueError("its values have more than 8 bits, which Pillow would change; write it again with 8 bits, or as a PNG")
    low = Image.open(io.BytesIO(encoded), formats=[str(image.format)])
    # Pillow keeps the higher byte of each 16-bit value; read in the other order of bytes, it keeps the lower one.
    low.tile = [_swap_bytes(tile) for tile in low.tile]
    both = [np.asarray(one)[..., :3].astype(np.uint16) for one in (image, low)]
    return both[0] * 256 + both[1]


def _raw_mode(tile: Any) -> Any:
    return tile[3][0] if isinstance(tile[3], tuple) else tile[3]


def _swap_bytes(tile: Any) -> Any:
    mode = _raw_mode(tile)
    mode = mode[:-1] + LOW_BYTES[mode[-1]]
    return tile._replace(args=(mode, *tile[3][1:]) if isinstance(tile[3], tuple) else mode)
