"""A pyramid of feature maps from the tokens of one block (Li et al. 2022, "simple feature pyramid" of ViTDet)."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.convnext import LayerNorm2d

EPS = 1e-6


class Pyramid(nn.Module):
    """Maps of stride 4, 8, 16 and 32 by transposed convolutions, identity and max pooling; each then 1x1 and 3x3 convolved.

    A fifth one, of stride 64, is every second element of the fourth.

    Args:
        dim: of the tokens.
        width: channels of each map.
        n_levels: 4 or 5.
    """

    def __init__(self, dim: int, width: int, n_levels: int = 4):
        super().__init__()
        half, quarter = max(1, dim // 2), max(1, dim // 4)
        to_stride_4 = [nn.ConvTranspose2d(dim, half, 2, 2), LayerNorm2d(half, eps=EPS), nn.GELU()]
        scales: tuple[tuple[nn.Module, int], ...] = (
            (nn.Sequential(*to_stride_4, nn.ConvTranspose2d(half, quarter, 2, 2)), quarter),
            (nn.ConvTranspose2d(dim, half, 2, 2), half),
            (nn.Identity(), dim),
            (nn.MaxPool2d(2, 2, ceil_mode=True), dim),  # an odd grid loses nothing
        )
        self.levels = nn.ModuleList(
            nn.Sequential(
                scale,
                nn.Conv2d(channels, width, 1, bias=False),
                LayerNorm2d(width, eps=EPS),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                LayerNorm2d(width, eps=EPS),
            )
            for scale, channels in scales
        )
        self.n_levels = n_levels

    def forward(self, tokens: Float[Tensor, "B D rows columns"]) -> dict[str, Float[Tensor, "B C _h _w"]]:
        """Maps by level, "0" the finest."""
        maps = [level(tokens) for level in self.levels]
        if self.n_levels > len(maps):
            maps.append(F.max_pool2d(maps[-1], 1, 2))
        return {str(level): values for level, values in enumerate(maps)}
