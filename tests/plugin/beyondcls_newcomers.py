"""A package with an entry of each kind, as its authors would write it."""

import math

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import beyondcls
from extract.attention.declared import declares, infinity
from extract.datasets.form import Example, Published, pictures
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import lines, listed, parsing, unlisted


class GeM(beyondcls.Aggregator):
    """The generalised mean of patch tokens."""

    reads = ("patch",)
    variants = ({}, {"p": 4.0})

    def __init__(self, dim, p=3.0):
        super().__init__(dim)
        self.p = nn.Parameter(torch.tensor(p))

    def forward(self, features):
        x = features["patch"].clamp(min=1e-6)
        return beyondcls.Pooled(x.pow(self.p).mean(1).pow(1 / self.p), None)


def make_vit(depth=2):
    """A small ViT with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=depth, num_heads=2, num_classes=0)
        return beyondcls.wrap(vit, input_size=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


@declares(
    "Attention of the first patch to [cls]",
    "share of attention, 0–1",
    highest=lambda n, t: 1,
    uniform=lambda n, t: 1 / n,
    of_cls=True,
    of_all_tokens=True,
    spatial=True,
)
def first_patch_to_cls(attention):
    """a[patch 0, cls]; 0…1. Uniform attention: 1 / N."""
    at = attention.layout.n_prefix
    return attention.to_cls[..., at] / attention.z[..., at]


@declares("Growth of tokens by what attention adds", "ratio of norms, without bound", highest=infinity)
def growth(residual, branch, layout):
    """Mean over patches of |x + branch| / |x|; 0 to infinity."""
    patches = slice(layout.n_prefix, None)
    return ((residual + branch).norm(dim=-1) / residual.norm(dim=-1))[:, patches].mean(1)


def top2_hits(logits, labels):
    """Whether the class of each image has one of the two highest logits; those that are no numbers are wrong."""
    own = logits.gather(-1, labels.expand(logits.shape[:-1])[..., None])
    is_number = ~(logits.isnan() | (logits == math.inf)).any(-1)
    return ((logits >= own).sum(-1) <= 2) & is_number


SPLITS = ("train", "test")


def birds(root, split):
    """`lists/train.txt` and `lists/test.txt` name an image and its species on each line."""
    of_splits = {name: _listed(root / "lists" / f"{name}.txt") for name in SPLITS}
    classes = sorted({species for images in of_splits.values() for species in images.values()})
    samples = [listed(root / "photos", name, (classes.index(species),)) for name, species in of_splits[split].items()]
    names = [name for images in of_splits.values() for name in images]
    return ImageSet(str(root), samples, classes, unlisted(root / "photos", names))


def _listed(file):
    with parsing(file, "IMAGE SPECIES on each line"):
        return {name: species for name, species in (line.split() for line in lines(file))}  # noqa: C416


EXAMPLE = Example(
    {
        "lists/train.txt": "2.jpg wren\n1.jpg kite\n",
        "lists/test.txt": "3.jpg kite\n",
        **pictures("photos", "1.jpg", "2.jpg", "3.jpg"),
    },
    ("kite", "wren"),
    {"train": {"2": ("wren",), "1": ("kite",)}, "test": {"3": ("kite",)}},
)
BIRDS = Published(birds, SPLITS, ("lists/train.txt",), EXAMPLE)
