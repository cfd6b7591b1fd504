# %% [markdown]
# # Two machines
#
# One machine extracts; another one, without the images, the encoder or a GPU, fetches what its heads read. A folder stands
# for the place that both can reach; it may be an object store (`s3://…`).

# %%
from pathlib import Path

import beyondcls

encoder = beyondcls.load_encoder("quickstart-mae")
photos = beyondcls.open_images("quickstart/data/cifar10/train")
train = beyondcls.extract(encoder, photos.part(range(300)), "gallery/train", vectors="all")
receipt = beyondcls.Receipt.from_store(train)
address = f"gallery/common/train-{receipt.key}"
beyondcls.upload(train, address)
print(f"{receipt.n_images} images, {receipt.nbytes / 1e6:.1f} MB")

# %% [output]
# 300 images, 10.2 MB

# %% [markdown]
# On the other machine: [cls] alone, compared with its digests while it is fetched. The receipt (a few kB, kept in git) says
# what the set must be.

# %%
copy = beyondcls.pull(address, Path("gallery/elsewhere/train"), kinds=["images", "cls"])
receipt.check(copy)
nbytes = sum(file.stat().st_size for file in Path("gallery/elsewhere/train").rglob("*") if file.is_file())
print(f"{', '.join(copy.kinds)}: {nbytes / 1e6:.1f} MB")

# %% [output]
# cls, images: 0.8 MB

# %% [markdown]
# A head trains on the copy as on the original, to the last bit.

# %%
model = beyondcls.ProbeClassifier(epochs=8, warmup_epochs=1, batch_size=64)
trained = [
    model.fit(store.tokens("cls").all(), store.labels).decision_function(train.tokens("cls").all()) for store in (train, copy)
]
print((trained[0] == trained[1]).all())

# %% [output]
# True

# %% [markdown]
# What it lacks can be fetched later, or the message says how.

# %%
try:
    copy.tokens("patch")
except beyondcls.BeyondClsError as error:
    print(error)

# %% [output]
# gallery/elsewhere/train/patch is not in this copy of the feature set; fetch it: dvc pull gallery/elsewhere/train/patch
