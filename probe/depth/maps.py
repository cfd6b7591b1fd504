"""Depth or normals of the pixels of images, in files by the images' ids, as the views of a feature set show them."""

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from jaxtyping import Float, Float32, Int

from probe.depth.targets import Target
from probe.result_files import array_of
from probe.segmentation.label_maps import Upsampling
from probe.views import View, read_png
from store import BeyondClsError
from store.truths.view import values_in_view

ENDS = (".png", ".npy")
PNG_MODES = ("I", "I;16", "I;16B", "RGB")  # Pillow's, of 16 bits or of three channels
EIGEN_CROP = (slice(45, 471), slice(41, 601))  # rows and columns of NYUv2's that are measured (Eigen et al. 2014)
NYU_SIZE = (480, 640)


@dataclass(eq=False, kw_only=True)
class Maps(View):
    """Maps of some images of a feature set in one view.

    Attributes:
        folder: of FOLDER/ID.png or FOLDER/ID.npy.
        target: what they hold.
        rows: of the images.
        eigen_crop: leave out what is not in EIGEN_CROP.
        files: by row.
    """

    folder: Path
    target: Target
    rows: Int[np.ndarray, "n"]
    eigen_crop: bool = False
    files: dict[int, Path] = field(init=False)

    def __post_init__(self) -> None:
        """Find the files.

        Raises:
            BeyondClsError: an image has none, or two.
        """
        super().__post_init__()
        found = {int(row): self._files_of(self.store.ids[row]) for row in self.rows}
        if wrong := [row for row, files in found.items() if len(files) != 1]:
            name, n_found = self.store.ids[wrong[0]], "two files" if found[wrong[0]] else "no file"
            raise BeyondClsError(
                f"{len(wrong)} of {len(found)} images of {self.store.where} have {n_found} of "
                f"{self.target.name} in {self.folder}, first {name!r}; expected either of {self.folder / name}.png and .npy"
            )
        self.files = {row: files[0] for row, files in found.items()}

    def _files_of(self, name: str) -> list[Path]:
        """Files of an image; ids never lead out of the folder."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            return []
        return [file for end in ENDS if (file := self.folder / f"{name}{end}").is_file()]

    def read(self, row: int) -> Float32[np.ndarray, "c h w"]:
        """What a file holds, in pixels of the original; NaN where it is missing.

        Raises:
            BeyondClsError: it is damaged, of another form, or of another size than its image.
        """
        file, size, target = self.files[row], self.size(row), self.target
        expected = f"{target.expected}; of {size[1]} x {size[0]} pixels (width x height), as its image"
        values = array_of(file, expected) if file.suffix == ".npy" else read_png(file, size, PNG_MODES, expected)
        if file.suffix == ".png" and values.ndim == 2:
            values = values.astype(np.uint16)
        if values.shape != (*size, *target.of_pixel) or not (values.dtype == target.of_png or values.dtype.kind == "f"):
            raise BeyondClsError(f"{file} holds {list(values.shape)} {values.dtype}; expected {expected}")
        return target.decoded(values)

    def original(self, row: int, read: Float32[np.ndarray, "c h w"] | None = None) -> Float32[np.ndarray, "c h w"]:
        """In pixels of the original; NaN where nothing is learnt or measured. `read`: what `read` gave.

        Raises:
            BeyondClsError: as `read`; or it is not of NYUv2, of which a part is to be measured.
        """
        values = self.target.usable(self.read(row) if read is None else read)
        if not self.eigen_crop:
            return values
        if self.size(row) != NYU_SIZE:
            raise BeyondClsError(
                f"{self.files[row]} has {self.size(row)[1]} x {self.size(row)[0]} pixels, and --eigen-crop is a part of "
                f"NYUv2's {NYU_SIZE[1]} x {NYU_SIZE[0]}; leave it out"
            )
        kept = np.full_like(values, np.nan)
        kept[:, *EIGEN_CROP] = values[:, *EIGEN_CROP]
        return kept

    def in_frame(self, row: int, size: tuple[int, int]) -> Float32[np.ndarray, "c h w"]:
        """In a frame of `size` that the view fills."""
        values = values_in_view(self.original(row), *self.shows(row), size)
        return self.target.mirrored(values) if self.flips[row] else values

    def upsampling(self, row: int, grid: tuple[int, int]) -> Upsampling:
        """From a grid that covers the view to the pixels of the original that it shows."""
        return Upsampling.to_original(grid, *self.shows(row), self.size(row))

    def shown(self, row: int, read: Float32[np.ndarray, "c h w"] | None = None) -> Float32[np.ndarray, "c _h _w"]:
        """As `original`, those pixels that the view shows."""
        return self.original(row, read)[:, *self.upsampling(row, self.store.grid).shown]


@dataclass
class Counts:
    """Pixels of some images.

    Attributes:
        measured: that have a value, and are shown.
        missing: that have none.
        beyond: depths outside of the range.
        outside: that no view shows, or that are left out by request.
        sums: of the values that are measured, [C].
        rows: of images with some that are measured.
    """

    measured: int = 0
    missing: int = 0
    beyond: int = 0
    outside: int = 0
    sums: Float[np.ndarray, "C"] = field(default_factory=lambda: np.zeros(1))
    rows: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, maps: Maps) -> "Counts":
        """Of all images of some maps, each of which is read.

        Raises:
            BeyondClsError: as `Maps.original`; or no pixel has a value.
        """
        counts = cls()
        for row in maps.files:
            raw = maps.read(row)
            usable, shown = maps.target.usable(raw), maps.shown(row, raw)
            seen = ~np.isnan(shown[0])
            missing, measured = int(np.isnan(raw[0]).sum()), int(seen.sum())
            counts.measured += measured
            counts.missing += missing
            counts.beyond += int(np.isnan(usable[0]).sum()) - missing
            counts.outside += int((~np.isnan(usable[0])).sum()) - measured
            counts.sums = counts.sums + shown[:, seen].sum(1, dtype=np.float64)
            counts.rows += [row] * bool(measured)
        if not counts.measured:
            raise BeyondClsError(
                f"no pixel of {len(maps.files)} images of {maps.store.where} has a usable value of {maps.target.name}: "
                f"{counts.missing} are missing, {counts.beyond} beyond the range of depths, {counts.outside} not shown; "
                f"expected {maps.target.expected}"
            )
        return counts

    @property
    def described(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("measured", "missing", "beyond", "outside")}
