"""A detector on tokens is torchvision's Mask R-CNN on images, behind a pyramid; anchors have exact strides."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from probe.detection.detector import LOSSES, RATIOS, Anchors, Detector, Pyramid
from probe.detection.recipe import DetectorOptions
from probe.head import FinalNorm
from store import BeyondClsError
from tests.probe.detection.tiny import CLASSES, DIM, OPTIONS, Objects, tiny_detector


class Behind(nn.Module):
    """A backbone that takes no notice of the images: the pyramid of given tokens."""

    def __init__(self, detector: Detector, tokens: torch.Tensor):
        super().__init__()
        self.maps, self.tokens, self.out_channels = detector.maps, tokens, detector.options.width

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        assert len(images) == len(self.tokens)
        torch.manual_seed(1)  # before it, torchvision has drawn the size to which images are resized
        return self.maps(self.tokens)


def torchvisions(detector: Detector, tokens: torch.Tensor) -> MaskRCNN:
    """torchvision's model, made by torchvision, with the detector's parameters."""
    width, n, options = detector.options.width, len(CLASSES) + 1, detector.options
    sides = tuple((side,) for side in options.anchors)
    proposals = {f"rpn_{when}_nms_top_n_train": options.proposals for when in ("pre", "post")}
    proposals |= {f"rpn_{when}_nms_top_n_test": options.proposals // 2 for when in ("pre", "post")}
    model = MaskRCNN(
        Behind(detector, tokens),
        min_size=detector.frame[0],
        max_size=detector.frame[0],
        rpn_anchor_generator=AnchorGenerator(sides, (RATIOS,) * len(sides)),
        box_head=TwoMLPHead(width * 49, options.box_features),
        box_predictor=FastRCNNPredictor(options.box_features, n),
        mask_head=MaskRCNNHeads(width, (width,) * options.mask_layers, 1),
        mask_predictor=MaskRCNNPredictor(width, width, n),
        box_batch_size_per_image=options.samples,
        **proposals,
    )
    for part in ("rpn", "roi_heads"):
        getattr(model, part).load_state_dict(getattr(detector, part).state_dict())
    return model


def test_is_torchvisions_model():
    objects, detector = Objects(3), tiny_detector(samples=4)
    tokens, images = objects.tokens, list(torch.zeros(3, 3, *detector.frame))
    targets = [{name: torch.cat([values] * 2) for name, values in target.items()} for target in objects.targets]
    theirs = torchvisions(detector, tokens)
    torch.manual_seed(1)
    losses = detector(tokens, targets)
    expected = theirs(images, [dict(target) for target in targets])
    assert losses.keys() == expected.keys() == set(LOSSES)
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected[name], rtol=1e-5, atol=1e-5)
    detector.roi_heads.score_thresh = theirs.roi_heads.score_thresh = 0.2  # an untrained one is sure of nothing
    detected = detector.eval()(tokens)
    for ours, one in zip(detected, theirs.eval()(images), strict=True):
        assert len(ours["boxes"])
        for name in ("boxes", "labels", "scores"):
            torch.testing.assert_close(ours[name], one[name], rtol=1e-5, atol=1e-5)


def test_thresholds_and_numbers_are_torchvisions():
    """Those of losses and of what is kept, which small images hardly show."""
    ours = tiny_detector(samples=4, proposals=41)
    theirs = torchvisions(ours, torch.zeros(1, 64, DIM))
    for part in ("rpn", "roi_heads"):
        one, other = getattr(ours, part), getattr(theirs, part)
        for matcher in ("proposal_matcher", "fg_bg_sampler", "box_coder"):
            assert vars(getattr(one, matcher)) == vars(getattr(other, matcher)), (part, matcher)
        for name in ("nms_thresh", "score_thresh", "detections_per_img", "_pre_nms_top_n", "_post_nms_top_n", "min_size"):
            assert getattr(one, name, None) == getattr(other, name, None), (part, name)


def test_pyramid_by_hand():
    torch.manual_seed(0)
    pyramid, tokens = Pyramid(8, 4, 5), torch.randn(2, 8, 3, 5)
    for parameter in pyramid.parameters():
        torch.nn.init.normal_(parameter)

    def norm(values, layer):
        return F.layer_norm(values.movedim(1, -1), values.shape[1:2], layer.weight, layer.bias, 1e-6).movedim(-1, 1)

    def up(values, layer):
        return F.conv_transpose2d(values, layer.weight, layer.bias, 2)

    first = pyramid.levels[0][0]
    scaled = [
        up(F.gelu(norm(up(tokens, first[0]), first[1])), first[3]),
        up(tokens, pyramid.levels[1][0]),
        tokens,
        F.max_pool2d(F.pad(tokens, (0, 1, 0, 1), value=-torch.inf), 2),
    ]
    expected = [
        norm(F.conv2d(norm(F.conv2d(values, level[1].weight), level[2]), level[3].weight, padding=1), level[4])
        for values, level in zip(scaled, pyramid.levels, strict=True)
    ]
    expected.append(expected[3][..., ::2, ::2])
    maps = pyramid(tokens)
    assert list(maps) == ["0", "1", "2", "3", "4"]
    for ours, theirs in zip(maps.values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grid", [(8, 8), (4, 12)])
def test_anchors_of_even_grids_are_torchvisions(grid):
    """Squares, and boxes of the same area that are twice as high or as wide."""
    detector = tiny_detector(grid=grid, anchors=(8, 16, 32, 64, 128))
    maps = list(detector.maps(torch.zeros(2, grid[0] * grid[1], DIM)).values())[:4]
    sides = detector.options.anchors[:4]
    images = ImageList(torch.zeros(2, 1, *detector.frame), [detector.frame] * 2)
    theirs = AnchorGenerator(tuple((side,) for side in sides), ((0.5, 1.0, 2.0),) * 4)(images, maps)
    assert all(torch.equal(a, b) for a, b in zip(Anchors(sides)(images, maps), theirs, strict=True))


def test_odd_grids_lose_nothing():
    """37 patches of 14 pixels: the map of stride 32 has 19 columns, the last half outside, and its anchors are 32 apart."""
    detector = tiny_detector(grid=(5, 37))
    maps = detector.maps(torch.randn(1, 5 * 37, DIM))
    assert [tuple(values.shape[-2:]) for values in maps.values()] == [(20, 148), (10, 74), (5, 37), (3, 19)]
    anchors = Anchors((8, 8, 8, 8))(ImageList(torch.zeros(1, 1, 80, 592), [(80, 592)]), list(maps.values()))[0]
    last = anchors[-3 * 19 * 3 :].view(3, 19, 3, 4)
    assert last[2, 18, 1].tolist() == [18 * 32 - 4, 2 * 32 - 4, 18 * 32 + 4, 2 * 32 + 4]
    assert isinstance(detector.eval()(torch.randn(1, 5 * 37, DIM)), list)


def test_the_final_norm_comes_first():
    tokens, norm = torch.randn(2, 64, DIM), FinalNorm(torch.linspace(1, 2, DIM), torch.ones(DIM), 1e-6)
    plain, normed = tiny_detector(), tiny_detector()
    normed.final_norm = norm
    expected = plain.maps(norm({"patch": tokens})["patch"])
    assert all(torch.equal(values, expected[name]) for name, values in normed.maps(tokens).items())
    assert not torch.allclose(plain.maps(tokens)["0"], expected["0"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"grid": (1, 8)}, r"1 x 8 patches, .*--input-size"),
        ({"anchors": (8, 16)}, r"anchors is \(8, 16\), .* 4 or 5 levels"),
        ({"anchors": (0, 8, 16, 32)}, r"anchors is \(0, 8, 16, 32\)"),
        ({"width": 0}, "width is 0, expected 1 or more"),
        ({"proposals": 1}, "proposals is 1, expected 2 or more"),
    ],
)
def test_detectors_that_cannot_be(changed, message):
    with pytest.raises(BeyondClsError, match=message):
        tiny_detector(**changed)


def test_what_does_not_fit_a_detector():
    with pytest.raises(BeyondClsError, match=r"tokens are \[1, 60, 12\], this detector expects \[B, 64, 12\], 8 x 8"):
        tiny_detector()(torch.zeros(1, 60, DIM))
    with pytest.raises(BeyondClsError, match="'widht'; did you mean 'width'"):
        DetectorOptions.from_dict({**OPTIONS, "widht": 8})
