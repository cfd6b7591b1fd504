"""A classifier of [cls] that is trained together with its encoder, as MAE is fine-tuned (arXiv 2111.06377, appendix A.1)."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from quickstart.augment import colour_jitter, mix, random_resized_crop
from quickstart.vit import encode, normalise, random_tokens


class ClsClassifier(nn.Module):
    """A linear classifier of [cls] after the final norm; no gradient comes from the patch tokens of the last block.

    As published: a classifier that starts near zero, label smoothing, mixup and CutMix; drop path is the encoder's. Adapted to
    32 x 32 pixels and to minutes on a CPU: of each image only `tokens` random patches go through the encoder in training (None
    keeps all), crops of at least `smallest_crop` of the image, changes of brightness, contrast and saturation in place of
    RandAugment (whole batches at once), no random erasing, and a share `mixed` of images is mixed where the published hundred
    epochs mix all of them.
    """

    def __init__(
        self,
        vit: VisionTransformer,
        n_classes: int,
        tokens: int | None = 16,
        smallest_crop: float = 0.5,
        mixed: float = 0.2,
        smoothing: float = 0.1,
    ):
        super().__init__()
        self.encoder = vit
        self.classifier = nn.Linear(vit.embed_dim, n_classes)
        self.tokens, self.smallest_crop, self.mixed, self.smoothing = tokens, smallest_crop, mixed, smoothing
        nn.init.trunc_normal_(self.classifier.weight, std=2e-5)
        nn.init.zeros_(self.classifier.bias)

    def logits(self, images: Float[Tensor, "B 3 H W"], positions: Int[Tensor, "B K"] | None = None) -> Float[Tensor, "B C"]:
        """Of images in 0...1, from their patches at `positions` (all of them by default)."""
        return self.classifier(encode(self.encoder, normalise(images), positions)[:, 0])

    def loss(
        self, images: Float[Tensor, "B 3 H W"], labels: Int[Tensor, "B"], generator: torch.Generator, progress: float
    ) -> Float[Tensor, ""]:
        """Cross-entropy on augmented images in 0...1, ln C by chance. `progress` (0...1) is unused here."""
        images = random_resized_crop(images, generator, images.shape[-1], scale=(self.smallest_crop, 1))
        images = colour_jitter(images, generator, grey=0, solarize=0)
        targets = F.one_hot(labels, self.classifier.out_features).float()
        images, targets = mix(images, targets, generator, self.mixed)
        positions = None
        if self.tokens is not None:
            n_tokens = self.encoder.patch_embed.num_patches
            positions = random_tokens(len(images), n_tokens, self.tokens, generator).to(images.device)
        with torch.random.fork_rng(devices=[]):  # drop path draws from torch's own generator, which a checkpoint lacks
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            return F.cross_entropy(self.logits(images, positions), targets, label_smoothing=self.smoothing)

    def after_step(self, progress: float) -> None:
        """Nothing follows an optimiser step."""

    @torch.no_grad()
    def top1(self, images: UInt8[Tensor, "n 3 H W"], labels: Int[Tensor, "n"], batch: int = 100) -> float:
        """Percent of images, uncropped, that are classified correctly."""
        training = self.training
        self.eval()
        predicted = torch.cat([self.logits(part.float() / 255).argmax(1) for part in images.split(batch)])
        self.train(training)
        return round(100 * (predicted == labels).float().mean().item(), 2)

    def groups(self, weight_decay: float, layer_decay: float) -> list[dict[str, Any]]:
        """Parameters for the optimiser, a group for each layer and kind: earlier layers learn more slowly.

        The learning rate of layer l of the `depth` + 2 (embedding and positions, blocks, final norm and classifier) is
        multiplied by `layer_decay`^(depth + 1 - l). Vectors, positions and [cls] do not decay.
        """
        last = len(self.encoder.blocks) + 1
        by_layer: dict[tuple[int, bool], list[nn.Parameter]] = {}
        for name, layer, parameter in self._layers(last):
            decays = parameter.ndim > 1 and name not in self.encoder.no_weight_decay()
            by_layer.setdefault((layer, decays), []).append(parameter)
        return [
            {"params": parameters, "weight_decay": weight_decay if decays else 0.0, "lr_scale": layer_decay ** (last - layer)}
            for (layer, decays), parameters in by_layer.items()
        ]

    def _layers(self, last: int) -> Iterator[tuple[str, int, nn.Parameter]]:
        """Name in the encoder, layer, and parameter of each."""
        for name, parameter in self.encoder.named_parameters():
            if name.startswith("blocks."):
                yield name, int(name.split(".")[1]) + 1, parameter
            else:
                yield name, last if name.startswith("norm.") else 0, parameter
        for parameter in self.classifier.parameters():
            yield "", last, parameter
