"""Random views of images for contrastive learning: two views of one image should agree.

Images are float (n, channels, height, width) in [0, 1]; each is changed by numbers of its own. Three channels get the
views of natural images (crop and resize, flip, colours, greyscale), one channel those of handwriting (a small turn,
shift and zoom, never a flip: a mirrored letter is another letter). Numbers are drawn on the CPU, so that the views are the
same wherever the images lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from covey.shared.errors import PublicError

Views = Callable[[Tensor, torch.Generator], Tensor]

LUMA = (0.299, 0.587, 0.114)
CROP = (0.2, 1.0)  # share of the area
RATIO = (3 / 4, 4 / 3)
JITTER, HUE = 0.4, 0.1  # hue in turns
JITTER_CHANCE, GREY_CHANCE = 0.8, 0.2
TURN, SHIFT, ZOOM = math.radians(15), 0.1, (0.9, 1.1)
_YIQ = torch.tensor([LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])


def views_for(features: tuple[int, ...]) -> Views:
    """The views that suit these features. Raises UserError for features that are no images."""
    if len(features) == 3 and features[0] == 3:
        return natural
    if len(features) == 3 and features[0] == 1:
        return handwriting
    raise PublicError(
        f"task.features {list(features)}: contrastive views are made of images [1, height, width] or "
        "[3, height, width]; for other data set strategy.beta to 0 or take strategy.variant fedavg+clusteredFL"
    )


def natural(images: Tensor, draw: torch.Generator) -> Tensor:
    """Crop and resize (scale 0.2 to 1), flip in half of the cases, jitter colours, greyscale now and then."""
    at = images.device
    cropped = _crop(images, draw)
    jittered = torch.where(
        _chance(len(images), JITTER_CHANCE, draw).to(at), _jitter(cropped, draw), cropped
    )
    return torch.where(_chance(len(images), GREY_CHANCE, draw).to(at), _grey(jittered), jittered)


def handwriting(images: Tensor, draw: torch.Generator) -> Tensor:
    """Turn by up to 15 degrees, shift by up to 10 % of the size, zoom by 0.9 to 1.1; 0 comes in from outside."""
    n, _, height, width = images.shape
    angle, right, down = (_uniform(n, -most, most, draw) for most in (TURN, 2 * SHIFT, 2 * SHIFT))
    zoom = _uniform(n, *ZOOM, draw)
    cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
    # coordinates run from -1 to 1 on both axes: an image that is not square turns in pixels, not in these
    rows = (cos, -sin * height / width, right, sin * width / height, cos, down)
    return _resample(images, torch.stack(rows, dim=1).view(n, 2, 3), padding="zeros")


def _crop(images: Tensor, draw: torch.Generator) -> Tensor:
    n, _, height, width = images.shape
    area = _uniform(n, *CROP, draw)
    ratio = torch.exp(_uniform(n, math.log(RATIO[0]), math.log(RATIO[1]), draw)) * height / width
    wide, high = torch.sqrt(area * ratio).clamp(max=1), torch.sqrt(area / ratio).clamp(max=1)
    right, down = ((1 - size) * _uniform(n, -1, 1, draw) for size in (wide, high))
    flip = torch.where(torch.rand(n, generator=draw) < 0.5, -1.0, 1.0)
    none = torch.zeros(n)
    rows = (wide * flip, none, right, none, high, down)
    return _resample(images, torch.stack(rows, dim=1).view(n, 2, 3), padding="reflection")


def _jitter(images: Tensor, draw: torch.Generator) -> Tensor:
    """Brightness, contrast and saturation by 0.6 to 1.4 and hue by up to a tenth of a turn, in random order."""
    steps = (_brightness, _contrast, _saturation, _hue)
    for i in torch.randperm(len(steps), generator=draw).tolist():
        images = steps[i](images, draw).clamp(0, 1)
    return images


def _brightness(images: Tensor, draw: torch.Generator) -> Tensor:
    return images * _factor(images, draw)


def _contrast(images: Tensor, draw: torch.Generator) -> Tensor:
    return torch.lerp(
        _grey(images).mean(dim=(1, 2, 3), keepdim=True), images, _factor(images, draw)
    )


def _saturation(images: Tensor, draw: torch.Generator) -> Tensor:
    return torch.lerp(_grey(images), images, _factor(images, draw))


def _hue(images: Tensor, draw: torch.Generator) -> Tensor:
    """Turn the colour plane of YIQ: brightness and saturation stay."""
    angle = _uniform(len(images), -HUE, HUE, draw) * 2 * math.pi
    turn = torch.zeros(len(images), 3, 3)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = torch.cos(angle)
    turn[:, 1, 2], turn[:, 2, 1] = -torch.sin(angle), torch.sin(angle)
    matrix = (torch.linalg.inv(_YIQ) @ turn @ _YIQ).to(images.device)
    return torch.einsum("nij,njhw->nihw", matrix, images)


def _factor(images: Tensor, draw: torch.Generator) -> Tensor:
    return _uniform(len(images), 1 - JITTER, 1 + JITTER, draw).view(-1, 1, 1, 1).to(images.device)


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor(LUMA, device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True).expand_as(images)


def _resample(images: Tensor, affine: Tensor, *, padding: str) -> Tensor:
    grid = functional.affine_grid(affine.to(images.device), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode=padding, align_corners=False)


def _uniform(n: int, low: float, high: float, draw: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=draw)


def _chance(n: int, chance: float, draw: torch.Generator) -> Tensor:
    return (torch.rand(n, generator=draw) < chance).view(-1, 1, 1, 1)
