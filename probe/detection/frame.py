"""The frame in which a detector sees an image, whatever the size of its patches in pixels of the image."""

STRIDE = 16  # pixels of the frame for each patch, so that maps of the pyramid have strides of 4, 8, 16 and 32


def frame_of(grid: tuple[int, int]) -> tuple[int, int]:
    """Height and width in pixels of the frame of a grid of patches."""
    return grid[0] * STRIDE, grid[1] * STRIDE
