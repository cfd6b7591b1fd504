# %% [markdown]
# # First features
#
# A frozen encoder sees some photographs once; what it says is kept, and three heads are trained on it. The encoder is the
# quickstart's, a small ViT that was pretrained by masking; the photographs are of CIFAR-10.

# %%
import torch

import beyondcls

encoder = beyondcls.load_encoder("quickstart-mae")
photos = {split: beyondcls.open_images(f"quickstart/data/cifar10/{split}") for split in ("train", "test")}
few = {"train": photos["train"].part(range(300)), "test": photos["test"].part(range(100))}
print(few["train"])

# %% [output]
# ImageSet('quickstart/data/cifar10/train', 300 images)

# %% [markdown]
# `extract` runs the encoder, or keeps the feature set that is there. `vectors="all"` also keeps [cls] and the average patch
# of every block. With `bars=beyondcls.progress_bar` it shows how far it is.

# %%
features = {split: beyondcls.extract(encoder, few[split], f"gallery/{split}", vectors="all") for split in few}
print(features["train"])
print(features["train"].tokens("patch"))

# %% [output]
# FeatureStore('gallery/train', quickstart-mae, 300 images, attention, average, cls, images, norm, patch, statistics)
# ArrayReader('patch/block5/view0', [300, 64, 192], float16)

# %% [markdown]
# In a notebook the last line of a cell shows such objects as tables. Heads that read the same features train in one pass over
# them, every seed of each.

# %%
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe

recipe = Recipe(epochs=15, batch_size=64, warmup_epochs=2)
heads = {name: HeadPlan(HeadSpec(name), recipe, seeds=(0, 1)) for name in ("cls", "average", "abmilp")}
beyondcls.probe(features["train"], features["test"], "gallery/probes/quickstart-mae", heads)

for result in beyondcls.read_results("gallery/probes"):
    print(f"{result.probe.head:8} {result.probe.score.mean:.0f} % of the test images")

# %% [output]
# abmilp   44 % of the test images
# average  45 % of the test images
# cls      40 % of the test images

# %% [markdown]
# `read_results(…).to_pandas()` has all columns. A trained head is a torch module; this one says where it looks.

# %%
head = beyondcls.load_probe("gallery/probes/quickstart-mae/abmilp/trained/seed0")
patch = torch.from_numpy(features["test"].tokens("patch").rows([0, 1, 2])).float()
logits, weights = head({"patch": patch})
print(logits.shape, weights.shape, weights.sum(1).detach().round(decimals=3))

# %% [output]
# torch.Size([3, 10]) torch.Size([3, 64]) tensor([1., 1., 1.])
