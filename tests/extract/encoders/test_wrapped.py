"""Any ViT as an encoder: what is found is what the module itself computes; what cannot be found is said."""

import functools
import math
import warnings
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import beyondcls
from extract.attention import PER_BLOCK, STATISTICS, facts_of
from extract.attention.watch import attend
from store import BeyondClsError
from store.errors import BeyondClsWarning
from tests.extract.encoders.official import assert_equal
from tests.extract.encoders.reference import Reference

SIDE, PATCH, D, H, DEPTH = 32, 8, 24, 3, 2
T = (SIDE // PATCH) ** 2
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class Attends(nn.Module):
    """Attention of tokens to themselves, in one of several ways; keeps its last attention map."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.qkv, self.out = way, nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mix = nn.Linear(H, H)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, H, D // H).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / math.sqrt(D // H)
        self.map = logits.softmax(-1)
        return self.out(getattr(self, self.way)(q, k, v, logits).transpose(1, 2).reshape(b, n, D))

    def sdpa(self, q, k, v, logits):
        return F.scaled_dot_product_attention(q, k, v)

    def softmax(self, q, k, v, logits):
        return torch.matmul(F.dropout(torch.softmax(logits, dim=-1), 0.1, self.training), v)

    def three_axes(self, q, k, v, logits):
        return torch.bmm(F.softmax(logits.flatten(0, 1), dim=-1), v.flatten(0, 1)).unflatten(0, (-1, H))

    def kept(self, q, k, v, logits):
        a = logits.softmax(-1)
        self.mean = a.detach().mean(1)
        return a @ v

    def mixed(self, q, k, v, logits):
        """Heads are mixed behind the softmax: what it gives is not the attention that acts."""
        return self.mix(logits.softmax(-1).movedim(1, -1)).movedim(-1, 1) @ v

    def masked(self, q, k, v, logits):
        a = logits.softmax(-1)
        a[..., 0] = 0
        return a @ v

    def hidden(self, q, k, v, logits):
        return (logits.exp() / logits.exp().sum(-1, keepdim=True)) @ v

    def twice(self, q, k, v, logits):
        return F.scaled_dot_product_attention(q, k, v) - F.scaled_dot_product_attention(k, q, v)


class Block(nn.Module):
    def __init__(self, way: str, returns: str = "tensor"):
        super().__init__()
        self.before, self.attends, self.behind, self.returns = nn.LayerNorm(D), Attends(way), nn.LayerNorm(D), returns
        self.mlp = nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, hidden):
        x = hidden + self.attends(self.before(hidden))
        x = x + self.mlp(self.behind(x))
        return (x, None) if self.returns == "tuple" else x


class ViT(nn.Module):
    def __init__(self, way="sdpa", n_registers=0, cls="cls_token", last="norm", returns="tensor", order="last", out="tokens"):
        super().__init__()
        torch.manual_seed(0)
        self.image_size, self.order, self.out, self.returns = SIDE, order, out, returns
        self.patches = nn.Conv2d(3, D, PATCH, PATCH)
        self.positions = nn.Parameter(torch.randn(1, T, D) / 5)
        n = n_registers + bool(cls)
        if cls:
            setattr(self, cls, nn.Parameter(torch.randn(1, 1, D)))
        self.registers = nn.Parameter(torch.randn(1, n_registers, D))
        self.n, self.cls_name = n, cls
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Block(way, returns) for _ in range(DEPTH))
        self.last = {"norm": nn.LayerNorm(D), "rms": nn.RMSNorm(D), "": nn.Identity()}[last]
        for block in self.encoder.layer:
            block.attends.qkv.weight.data *= 4  # attention is far from uniform

    def forward(self, images):
        x = self.patches(images).flatten(2).mT + self.positions
        prefix = ([getattr(self, self.cls_name)] if self.cls_name else []) + [self.registers]
        prefix = [p.expand(len(x), -1, -1) for p in prefix]
        x = torch.cat([*prefix, x] if self.order == "last" else [x, *prefix], 1)
        if self.order == "random":
            x = x[:, torch.randperm(x.shape[1])]
        of_blocks = []
        for block in self.encoder.layer:
            x = block(hidden=x)
            x = x[0] if self.returns == "tuple" else x
            of_blocks.append(x)
        x = self.last(x)
        outputs = {"tokens": x, "dict": {"tokens": x, "pooled": x[:, 0]}, "pooled": x[:, 0], "blocks": (x, of_blocks)}
        return outputs[self.out]


def wrapped(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BeyondClsWarning)
        return beyondcls.wrap(model, **options)


IMAGES = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("sdpa", {"n_registers": 2, "returns": "tuple", "out": "dict"}),
        ("softmax", {"cls": "class_embedding", "out": "pooled"}),
        ("three_axes", {"cls": "", "last": ""}),
        ("kept", {"last": "rms"}),
        ("sdpa", {"out": "blocks"}),
    ],
)
def test_what_is_found_is_what_the_module_computes(way, kind):
    model = ViT(way, **kind)
    encoder = wrapped(model)
    n_registers, has_cls = kind.get("n_registers", 0), kind.get("cls", "cls_token") != ""
    layout = encoder.layout
    assert (layout.has_cls, layout.n_registers, layout.grid, encoder.n_blocks) == (has_cls, n_registers, (4, 4), DEPTH)
    assert {*encoder.statistics} == {name for name in (*STATISTICS, *PER_BLOCK) if has_cls or not facts_of(name).of_cls}
    expected = Reference()
    for block in model.encoder.layer:
        block.register_forward_hook(lambda _m, _i, x: expected.tokens.append(x if isinstance(x, torch.Tensor) else x[0]))
        block.register_forward_pre_hook(lambda _m, _i, k: expected.entering.append(k["hidden"]), with_kwargs=True)
        block.attends.register_forward_hook(lambda m, _i, x: expected.attention.append(m.map) or expected.branch.append(x))
    with torch.inference_mode():
        model(IMAGES)
    assert_equal(encoder, IMAGES, deepcopy(expected))  # as the hooks are still there
    weights, eps = encoder.norm()
    assert (set(weights), eps) == ({"weight", "bias"}, 1e-5) if kind.get("last", "norm") == "norm" else not weights


class Made(nn.Module):
    """Patch tokens, and what `run` makes of them with some modules."""

    image_size = SIDE

    def __init__(self, run=lambda model, x: x, **modules):
        super().__init__()
        self.patches, self.run = nn.Conv2d(3, D, PATCH, PATCH), run
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, images):
        return self.run(self, self.patches(images).flatten(2).mT)


def test_layers_of_torch():
    """Whose attention is in a function that hides it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True, norm_first=True)
    layers, cls = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False), nn.Parameter(torch.randn(1, 1, D))
    with_cls = lambda model, x: torch.cat([model.class_token.expand(len(x), -1, -1), x], 1)  # noqa: E731
    model = Made(lambda model, x: model.layers(with_cls(model, x)), layers=layers, class_token=cls).eval()
    encoder, first = wrapped(model), model.layers.layers[0]
    with torch.inference_mode():
        x = first.norm1(with_cls(model, model.patches(IMAGES).flatten(2).mT))
        _, a = first.self_attn(x, x, x, need_weights=True, average_attn_weights=False)
    out = encoder(IMAGES, [DEPTH - 1], encoder.statistics, [0])
    torch.testing.assert_close(out.maps["cls/block0"], a[:, :, 0, 1:], **CLOSE)
    torch.testing.assert_close(torch.cat([out.cls[1][:, None], out.patch[1]], 1), model(IMAGES), **CLOSE)
    torch.testing.assert_close(encoder(IMAGES, [DEPTH - 1]).patch[1], out.patch[1], **CLOSE)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("hidden", "0 times"),
        *((way, "2 times") for way in ("mixed", "masked", "twice")),
    ],
)
def test_attention_that_is_not_seen_is_named_and_tokens_remain(way, why):
    with pytest.warns(BeyondClsWarning, match=f"computes attention {why} where it can be seen"):
        encoder = beyondcls.wrap(ViT(way), mean=(0.5,) * 3, std=(0.5,) * 3)
    assert encoder.statistics == ()
    assert encoder(IMAGES, [1], (), [1]).maps == {}


def of_stages():
    first, second = nn.ModuleList([Block("sdpa")]), nn.ModuleList([Block("sdpa")])
    return Made(lambda m, x: m.second[0](m.first[0](x).reshape(len(x), 2, -1, D).mean(1)), first=first, second=second)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (Made, {}, "no blocks were found in Made: no list of modules .* give blocks="),
        (of_stages, {}, "has further blocks of the kind Block .* no one grid"),
        (lambda: ViT(order="first"), {}, "change token .*, expected token .*: ViT must have its 4 x 4 patches last"),
        (lambda: ViT(order="random"), {}, "gives other tokens in each pass over one image"),
        (lambda: ViT(cls="", n_registers=1), {}, "has 1 tokens before its patches, .*; give has_cls"),
        (lambda: TakenApart(ViT("hidden")), {}, r"seem to be lists \(transformer\.layers\.\d, …\) whose parts the model calls"),
        (ViT, {"input_size": 30}, r"the patches of ViT were not found \(patch_size \(8, 8\), images of 30 x 30"),
        (ViT, {"input_size": 64}, "does not run on images .*; give forward="),
        (ViT, {"patch_size": 4}, "ViT has 17 tokens of an image, expected 8 x 8 patches or more"),
        (ViT, {"blocks": "encoder.layers"}, "ViT has no module 'encoder.layers'; its lists of modules: encoder.layer"),
        (ViT, {"blocks": ["patches"]}, r"'patches' is no block of ViT: it puts out \[1, 24, 4, 4\], expected tokens"),
        (ViT, {"norm": "lost"}, "has no module 'lost'; give the path of its last norm, or norm=\"\" for none"),
    ],
)
def test_what_cannot_be_found_says_what_to_give(make, options, message):
    with pytest.raises(BeyondClsError, match=message):
        wrapped(make(), **options)


def test_what_is_given_wins():
    model = ViT(n_registers=1)
    given = {"blocks": ["encoder.layer.0"], "norm": "", "has_cls": False, "mean": (0.1, 0.2, 0.3), "block": 0, "crop_pct": 1.0}
    encoder = wrapped(model, name="mine", family="labels", architecture={"depth": 1}, **given)
    assert (encoder.name, encoder.n_blocks, encoder.layout.n_registers, encoder.norm()) == ("mine", 1, 2, ({}, None))
    assert encoder.pretraining.family == "labels"
    assert encoder.config["mean"] == (0.1, 0.2, 0.3)
    assert '"depth": 1' in encoder.architecture
    assert not any(p.requires_grad for p in model.parameters())


def test_assumed_normalisation_is_said():
    with pytest.warns(BeyondClsWarning, match="normalised as ImageNet's .* give mean and std"):
        beyondcls.wrap(ViT())
    with pytest.warns(BeyondClsWarning, match="its last norm, a RMSNorm, is none that a feature set holds"):
        beyondcls.wrap(ViT(last="rms"), mean=(0, 0, 0), std=(1, 1, 1))


def test_a_wrong_reading_is_not_taken(monkeypatch):
    def scaled(*args, **options):
        out, attention = attend(*args, **options)
        return 1.1 * out, attention

    monkeypatch.setattr("extract.attention.watch.attend", scaled)
    with pytest.raises(BeyondClsError, match="tokens of the last block of ViT as they were read differ from the model's own"):
        wrapped(ViT())


class Layers(nn.Module):
    """The blocks of a ViT taken apart: lists of parts, whose sums are here."""

    def __init__(self, vit: ViT, last: nn.Module | None, is_doubled: bool):
        super().__init__()
        branches = lambda block: [nn.Sequential(block.before, block.attends), nn.Sequential(block.behind, block.mlp)]  # noqa: E731
        self.layers = nn.ModuleList(nn.ModuleList(branches(block)) for block in vit.encoder.layer)
        self.last, self.is_doubled = last, is_doubled

    def forward(self, x):
        for attends, mlp in self.layers:
            x = attends(x) + x
            x = mlp(x) + x
        x = torch.cat([x, x], -1) if self.is_doubled else x
        return x if self.last is None else self.last(x)


class TakenApart(nn.Module):
    def __init__(self, vit: ViT, is_norm_within: bool = True, is_doubled: bool = False):
        super().__init__()
        self.image_size, self.patches, self.positions, self.cls_token = SIDE, vit.patches, vit.positions, vit.cls_token
        self.transformer = Layers(vit, vit.last if is_norm_within else None, is_doubled)
        self.last = nn.Identity() if is_norm_within else vit.last

    def forward(self, images):
        x = self.patches(images).flatten(2).mT + self.positions
        return self.last(self.transformer(torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)))


@pytest.mark.parametrize(("way", "is_norm_within"), [("sdpa", True), ("softmax", False)])
def test_blocks_that_are_lists_of_parts(way, is_norm_within):
    """No module puts out a block's tokens where the model itself adds up what the parts of each give."""
    vit = ViT(way)
    apart, plain = wrapped(TakenApart(vit, is_norm_within)), wrapped(vit)
    assert (apart.layout, apart.n_blocks, apart.statistics) == (plain.layout, DEPTH, plain.statistics)
    assert apart.norm()[1] == plain.norm()[1] == 1e-5
    given = (IMAGES, range(DEPTH), plain.statistics, range(DEPTH), range(DEPTH))
    torch.testing.assert_close(vars(apart(*given)), vars(plain(*given)), rtol=0, atol=0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in apart.model.modules())


@pytest.mark.parametrize("kind", ["doubled", "halves", "shared"])
def test_parts_that_make_no_blocks(kind):
    """What the last block adds up to is given to no module as it is; each list is half a block; or all blocks are one."""
    model = TakenApart(ViT(last=""), is_norm_within=False, is_doubled=kind == "doubled")
    if kind == "halves":
        model.transformer.layers = nn.ModuleList(nn.ModuleList([part]) for parts in model.transformer.layers for part in parts)
        model.transformer.forward = lambda x: functools.reduce(lambda x, parts: parts[0](x) + x, model.transformer.layers, x)
    if kind == "shared":
        layers = model.transformer.layers
        model.transformer.layers = nn.ModuleList([layers[0], layers[0]])
    with pytest.raises(BeyondClsError, match=r"has further blocks of the kind|no blocks were found|seem to be lists"):
        wrapped(model)
