"""A package with an entry of each kind, as its authors would write it."""

import math

import torch
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


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(dim), Attention(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, depth, dim=16):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 8, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, 17, dim))
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)

    def forward(self, images):
        patches = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def make_vit(depth=2):
    """A small ViT with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return beyondcls.wrap(Vit(depth), input_size=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


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
