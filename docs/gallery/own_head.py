# %% [markdown]
# # A head of your own
#
# An aggregator makes one vector of an image's tokens. Here it is a generalised mean, whose exponent is learned.

# %%
from pathlib import Path

import beyondcls
from probe.grid import HeadPlan, HeadSpec
from probe.recipe import Recipe

Path("gallery").mkdir(exist_ok=True)
Path("gallery/gem.py").write_text("""
import torch
import beyondcls


class GeM(beyondcls.Aggregator):
    reads = ("patch",)

    def __init__(self, dim, p=3.0):
        super().__init__(dim)
        self.p = torch.nn.Parameter(torch.tensor(p))

    def forward(self, features):
        x = features["patch"].clamp(min=1e-6)
        return beyondcls.Pooled(x.pow(self.p).mean(1).pow(1 / self.p), None)
""")

encoder = beyondcls.load_encoder("quickstart-mae")
photos = {split: beyondcls.open_images(f"quickstart/data/cifar10/{split}") for split in ("train", "test")}
few = {"train": photos["train"].part(range(300)), "test": photos["test"].part(range(100))}
train, test = (beyondcls.extract(encoder, few[split], f"gallery/{split}", vectors="all") for split in few)
patch = train.tokens("patch").all()
print(patch.shape, patch.dtype)

# %% [output]
# (300, 64, 192) float16

# %% [markdown]
# For arrays in memory there is an estimator of scikit-learn, which takes any head that reads patch tokens alone.

# %%
from sklearn.model_selection import GridSearchCV

model = beyondcls.ProbeClassifier(epochs=8, warmup_epochs=1, batch_size=64)
heads = ["average", "max", "gallery/gem.py:GeM"]
search = GridSearchCV(model, {"aggregator": heads}, cv=2).fit(patch, train.labels)
for head, accuracy in zip(heads, search.cv_results_["mean_test_score"], strict=True):
    print(f"{head:18} {100 * accuracy:.0f} %")

# %% [output]
# average            42 %
# max                33 %
# gallery/gem.py:GeM 42 %

# %% [markdown]
# `beyondcls.probe` trains it from feature sets of any size, several seeds and learning rates side by side, as it does the
# built-in ones; so do `beyondcls probe --head gallery/gem.py:GeM` and `heads` in params.yaml.

# %%
recipe = Recipe(epochs=8, batch_size=64, warmup_epochs=1)
plan = HeadPlan(HeadSpec("gallery/gem.py:GeM", {"p": 2.0}), recipe, seeds=(0, 1), base_lrs=(0.03, 0.1))
measures = beyondcls.probe(train, test, "gallery/gem", plan)["gem"]
print(f"{measures['top1']['mean']:.0f} % of the test images, with the better of {len(plan.base_lrs)} learning rates")

# %% [output]
# 46 % of the test images, with the better of 2 learning rates
