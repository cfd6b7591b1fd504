"""What a card says whatever the run was: licence, how the weights are loaded, and what limits them."""

from extract.encoders.quickstart import CIFAR10

LICENCE = "MIT"
# Keys of model cards on hubs, which index them.
FRONT_MATTER = """---
license: mit
library_name: beyondcls
pipeline_tag: image-feature-extraction
{datasets}tags:
- vision-transformer
- {how}
---
"""
DATA = (
    "CIFAR-10 is Alex Krizhevsky's (*Learning multiple layers of features from tiny images*, 2009), who asks to cite that\n"
    "  report and states no licence. It is a labelled part of Tiny Images, collected from the web by search words."
)
LIMITS = (
    "it knows ten classes of animals and vehicles at 32 x 32 pixels; how it does on other images was not measured. Its\n"
    "  images come from Tiny Images, which its authors withdrew in 2020 for offensive labels and pictures; which biases that\n"
    "  left in these ten classes was not measured either. It is not meant for products, nor for anything that concerns people."
)


def front_matter(how: str, is_trained: bool = True) -> str:
    """What hubs read of a card: `how` the weights were trained, as a tag."""
    return FRONT_MATTER.format(how=how, datasets="datasets:\n- cifar10\n" if is_trained else "")


def licence(is_trained: bool = True) -> str:
    """Of the weights, and what is known of the data's."""
    return f"- Licence: {LICENCE}, as the code." + (f" {DATA}" if is_trained else "")


def loading(name: str) -> str:
    """How to use the weights; images are given as CIFAR-10's are."""
    mean, std = (str(CIFAR10[key]).strip("()") for key in ("mean", "std"))
    return f"""- How to load it: `beyondcls extract --encoder quickstart-{name} --checkpoint {name}.safetensors …`, from Python
  `beyondcls.load_encoder("quickstart-{name}", checkpoint="{name}.safetensors")`. Images are RGB, 32 x 32 pixels, with mean
  {mean} and standard deviation {std}."""
