"""Joint embedding by self-distillation (DINO, arXiv 2104.14294) with two crops and dropped student tokens."""

import copy
import math
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from pipelines.quickstart.augment import colour_jitter, random_resized_crop
from pipelines.quickstart.vit import encode, normalise, random_tokens


class ProjectionHead(nn.Module):
    """DINO's head: a multilayer perceptron, a normalised bottleneck and unit-length prototypes.

    Batch normalisation between its layers (an option of DINO's head, the rule in MoCo-v3's) is what makes a short run work:
    [cls] of an untrained ViT is nearly the same for all images, and without it all targets start out uniform.
    """

    def __init__(self, dim: int, hidden: int, bottleneck: int, n_prototypes: int):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(dim, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, bottleneck),
        )
        self.prototypes = nn.Parameter(torch.randn(n_prototypes, bottleneck))

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        return F.linear(F.normalize(self.mlp(x), dim=-1), F.normalize(self.prototypes, dim=-1))


class DINO(nn.Module):
    """The student's [cls] of one crop predicts the teacher's [cls] of the other crop.

    The teacher is the student's exponential moving average. Its scores are sharpened and centred by Sinkhorn-Knopp over the
    batch, as in DINOv2 (arXiv 2304.07193).
    Student crops keep `student_tokens` random patches (as MSN, arXiv 2204.07141, drops them: it costs a third and helps
    small data sets), teacher crops `teacher_tokens`; None keeps all.
    """

    def __init__(
        self,
        vit: VisionTransformer,
        n_prototypes: int = 256,
        student_tokens: int | None = 24,
        teacher_tokens: int | None = None,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.05,
        teacher_momentum: float = 0.99,
    ):
        super().__init__()
        self.student_tokens, self.teacher_tokens = student_tokens, teacher_tokens
        self.student_temperature, self.teacher_temperature = student_temperature, teacher_temperature
        self.teacher_momentum = teacher_momentum
        self.student = nn.ModuleDict({"vit": vit, "head": ProjectionHead(vit.embed_dim, 512, 128, n_prototypes)})
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @property
    def encoder(self) -> VisionTransformer:
        """What is exported: the teacher, as in the publication."""
        return cast(VisionTransformer, self.teacher["vit"])

    def scores(
        self, branch: nn.ModuleDict, crops: Tensor, kept: int | None, generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        vit = cast(VisionTransformer, branch["vit"])
        positions: Int[Tensor, "B kept"] | None = None
        if kept is not None:
            positions = random_tokens(len(crops), vit.patch_embed.num_patches, kept, generator).to(crops.device)
        return branch["head"](encode(vit, crops, positions)[:, 0])

    def loss(self, images: Float[Tensor, "B 3 H W"], generator: torch.Generator, progress: float) -> Float[Tensor, ""]:
        """Of images in 0...1; mean cross-entropy over both directions, nats. `progress` (0...1) is unused here."""
        size = images.shape[-1]
        crops = torch.cat(
            [
                normalise(colour_jitter(random_resized_crop(images, generator, size, scale=(0.25, 1)), generator))
                for _ in range(2)
            ]
        )
        with torch.no_grad():
            target = self.scores(self.teacher, crops, self.teacher_tokens, generator)
            sharp = sinkhorn(target / self.teacher_temperature)
        student = self.scores(self.student, crops, self.student_tokens, generator) / self.student_temperature
        other = sharp.roll(len(images), 0)  # the student of crop 1 predicts the teacher of crop 2, and the reverse
        return -(other * student.log_softmax(-1)).sum(-1).mean()

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Move the teacher; its momentum rises to 1 by half a cosine over the run (`progress` 0...1)."""
        momentum = 1 - (1 - self.teacher_momentum) * (math.cos(math.pi * progress) + 1) / 2
        for theirs, ours in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            theirs.lerp_(ours, 1 - momentum)


def sinkhorn(logits: Float[Tensor, "B K"], iterations: int = 3) -> Float[Tensor, "B K"]:
    """Soft assignments: rows sum to 1, and every prototype gets (nearly) the same share of the batch."""
    q = (logits - logits.max()).exp()
    for _ in range(iterations):
        q = q / q.sum(0, keepdim=True)
        q = q / q.sum(1, keepdim=True)
    return q
