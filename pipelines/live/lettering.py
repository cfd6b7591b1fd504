"""Letters on pictures, as large as the picture lets them be read."""

from PIL import ImageFont

SMALLEST = 10  # pixels
SHARE = 28  # of them fit one above the other


def font_for(size: tuple[int, int]) -> ImageFont.FreeTypeFont:
    """The font that comes with Pillow, for a picture of this height and width."""
    font = ImageFont.load_default(max(SMALLEST, round(min(size) / SHARE)))
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
