import numpy as np
from PIL import Image

from pipelines.live.overlay import blend, cut_out


def test_bright_where_the_weight_is():
    """Also on a grid that is not square; a flat map is all lowest."""
    picture = np.full((128, 128, 3), 100, np.uint8)
    bright = blend(picture, np.array([[0.1, 0.7], [0.1, 0.1]])).sum(-1)
    quarters = {(i, j): bright[64 * i : 64 * i + 64, 64 * j : 64 * j + 64].mean() for i in (0, 1) for j in (0, 1)}
    assert max(quarters, key=lambda key: quarters[key]) == (0, 1)
    wide = blend(picture[:40, :120], np.array([[0.1, 0.1, 0.7]])).sum(-1)
    assert wide[:, 80:].mean() > wide[:, 40:80].mean() > wide[:, :40].mean()
    lowest = blend(picture, np.array([[0.0, 0.0], [0.0, 1.0]]))[0, 0]
    with np.errstate(all="raise"):
        assert (blend(picture, np.full((2, 2), 0.25)) == lowest).all()


def test_cut_out_is_what_the_box_shows():
    image = Image.new("RGB", (8, 8))
    image.paste((90, 90, 90), (4, 0, 8, 8))
    half = cut_out(image, (2, 2, 6, 6), (2, 3))[..., 0]
    assert (half.shape, (half[:, 0] < 20).all(), (half[:, 1] > 70).all()) == ((3, 2), True, True)


def test_cut_out_beyond_the_border_is_black_and_keeps_fractions_of_a_pixel():
    """A padded part is where it would be in an image that has the padding."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8))
    padded = Image.new("RGB", (12, 12))
    padded.paste(image, (2, 2))
    shown, expected = cut_out(image, (-1.5, 0.5, 6.5, 8.5), (16, 16)), cut_out(padded, (0.5, 2.5, 8.5, 10.5), (16, 16))
    assert np.abs(shown.astype(int) - expected)[4:-4, 4:-4].max() <= 3
    beyond = cut_out(Image.new("RGB", (8, 8), (50, 50, 50)), (-8, 0, 8, 16), (4, 4))
    assert (beyond[:2, 2:] > 30).all()
    assert not beyond[3].any() | beyond[:, 0].any()
