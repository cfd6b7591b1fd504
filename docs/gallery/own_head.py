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
photos = beyondcls.open_images("quickstart/data/cifar10/train")
train = beyondcls.extract(encoder, photos.part(range(300)), "gallery/train", vectors="all")
patch = train.tokens("patch").all()
print(patch.shape, patch.dtype)

# %% [output]
# (300, 64, 192) float16

# %% [markdown]
# For arrays in memory there is an estimator of scikit-learn, which takes any head that reads patch tokens alone. Where should
# the exponent start?

# %%
from sklearn.model_selection import GridSearchCV

settings = {"epochs": 8, "warmup_epochs": 1, "batch_size": 64}
model = beyondcls.ProbeClassifier("gallery/gem.py:GeM", **settings)
search = GridSearchCV(model, {"options": [{"p": 1.0}, {"p": 3.0}]}, cv=2)
search.fit(patch, train.labels)
for p, accuracy in zip((1, 3), search.cv_results_["mean_test_score"], strict=True):
    print(f"from p = {p}: {100 * accuracy:.0f} %")
print(f"learned: p = {search.best_estimator_.head_.aggregator.p.item():.1f}")

# %% [output]
# from p = 1: 30 %
# from p = 3: 30 %
# learned: p = 1.0

# %% [markdown]
# `beyondcls.probe` trains it from feature sets of any size, several seeds and learning rates side by side, as it does the
# built-in ones; so do `beyondcls probe --head gallery/gem.py:GeM` and `own_heads` in params.yaml.

# %%
plan = HeadPlan(
    HeadSpec("gallery/gem.py:GeM"), Recipe(epochs=8, batch_size=64, warmup_epochs=1), seeds=(0,), base_lrs=(0.03, 0.3)
)
measures = beyondcls.probe(train, train, "gallery/gem", plan)["gem"]
print(f"of {len(plan.base_lrs)} learning rates {measures['recipe']['base_lr']} is the best on held-out images")

# %% [output]
# of 2 learning rates 0.3 is the best on held-out images
