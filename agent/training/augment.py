"""Random augmentation of images: for contrastive learning, where two views of one image should agree, and for training.

Images are float32 (n, channels, height, width) in [0, 1]; each is changed by numbers of its own. `training.augment` names
what changes the images that a model is trained on: much less than a view changes, so that every image keeps its label.
For views, images of three channels are treated as natural images (crop and resize, flip, colours, greyscale), images of one channel as handwriting (a small
rotation, shift and zoom, never a flip: a mirrored letter is another letter). All numbers are drawn on the CPU, so that
the views are the same whatever device holds the images.

Coordinates of `affine_grid` run from -1 to 1 on both axes. An affine matrix (n, 2, 3) maps a pixel of the view to the
place in the image that it shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from covey.shared.errors import PublicError
from covey.shared.strategies.training import Augment

# (images (n, c, h, w), generator) -> changed images of the same shape
Augmentation = Callable[[Tensor, torch.Generator], Tensor]

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in brightness (ITU-R BT.601)

# natural images
CROP_AREA = (0.2, 1.0)  # share of the image
CROP_RATIO = (3 / 4, 4 / 3)  # width / height
FLIP_CHANCE = 0.5
JITTER = 0.4  # brightness, contrast and saturation change by a factor within 1 +- this
HUE = 0.1  # in turns
JITTER_CHANCE = 0.8
GREY_CHANCE = 0.2

# handwriting
ROTATION = math.radians(15)
SHIFT = 0.1  # share of the image's size
ZOOM = (0.9, 1.1)

# training
SHIFT_IN = 8  # an image moves by at most this part of its size: 4 of CIFAR-10's 32 pixels

# RGB -> brightness (Y) and colour plane (I, Q), the primaries of NTSC
_YIQ = torch.tensor([LUMA, (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)])


def augmentation_for(features: tuple[int, ...]) -> Augmentation:
    """The augmentation that suits samples of this shape. Raises PublicError for samples that are no images."""
    if len(features) == 3 and features[0] == 3:
        return augment_natural
    if len(features) == 3 and features[0] == 1:
        return augment_handwriting
    raise PublicError(
        f"task.features {list(features)}: contrastive training needs images [1, height, width] or "
        "[3, height, width]; for other data set strategy.beta to 0 or strategy.variant to "
        "fedavg+clusteredFL"
    )


def augmentation_of_training(augment: Augment) -> Augmentation | None:
    """The augmentation that `training.augment` names; None: images stay unchanged."""
    match augment:
        case "none":
            return None
        case "shift":
            return shift
        case "shift_flip":
            return shift_and_flip


def shift(images: Tensor, draw: torch.Generator) -> Tensor:
    """Shift by whole pixels, up to an eighth of the size in both directions. Uncovered pixels are 0.

    This is what padding and random cropping do (He et al. 2016, section 4.2: 4 pixels for CIFAR-10).
    """
    n, channels, height, width = images.shape
    most_down = height // SHIFT_IN
    most_right = width // SHIFT_IN
    padded = functional.pad(images, (most_right, most_right, most_down, most_down))
    down = torch.randint(2 * most_down + 1, (n, 1), generator=draw)
    right = torch.randint(2 * most_right + 1, (n, 1), generator=draw)
    rows = (down + torch.arange(height)).to(images.device)
    columns = (right + torch.arange(width)).to(images.device)
    by_row = rows.view(n, 1, height, 1).expand(-1, channels, -1, padded.shape[3])
    by_column = columns.view(n, 1, 1, width).expand(-1, channels, height, -1)
    return padded.gather(2, by_row).gather(3, by_column)


def shift_and_flip(images: Tensor, draw: torch.Generator) -> Tensor:
    """Shift as `shift` does, and mirror half of the images left to right."""
    mirrors = _chosen(len(images), FLIP_CHANCE, draw).to(images.device)
    return shift(torch.where(mirrors, images.flip(3), images), draw)


def augment_natural(images: Tensor, draw: torch.Generator) -> Tensor:
    """Crop and resize (area 0.2 to 1), flip half of the images, jitter most colours, turn a fifth to grey."""
    device = images.device
    cropped = crop(images, draw)
    jitters = _chosen(len(images), JITTER_CHANCE, draw).to(device)
    jittered = torch.where(jitters, _jitter(cropped, draw), cropped)
    greys = _chosen(len(images), GREY_CHANCE, draw).to(device)
    return torch.where(greys, grey(jittered), jittered)


def augment_handwriting(images: Tensor, draw: torch.Generator) -> Tensor:
    """Rotate by up to 15 degrees, shift by up to 10 % of the size, zoom by 0.9 to 1.1. Uncovered pixels are 0."""
    n, _, height, width = images.shape
    angle = _uniform(n, -ROTATION, ROTATION, draw)
    right = _uniform(n, -2 * SHIFT, 2 * SHIFT, draw)  # an image is 2 wide in grid coordinates
    down = _uniform(n, -2 * SHIFT, 2 * SHIFT, draw)
    zoom = _uniform(n, *ZOOM, draw)
    cos = torch.cos(angle) / zoom
    sin = torch.sin(angle) / zoom
    # an image that is not square rotates in pixels, not in grid coordinates
    affine = _affine_matrices(
        (cos, -sin * height / width, right), (sin * width / height, cos, down)
    )
    return _resample(images, affine, padding="zeros")


def crop(images: Tensor, draw: torch.Generator) -> Tensor:
    """A random part of each image, resized to the whole; half of them mirrored."""
    n, _, height, width = images.shape
    area = _uniform(n, *CROP_AREA, draw)
    narrowest, widest = CROP_RATIO
    ratio = torch.exp(_uniform(n, math.log(narrowest), math.log(widest), draw)) * height / width
    crop_width = torch.sqrt(area * ratio).clamp(max=1)
    crop_height = torch.sqrt(area / ratio).clamp(max=1)
    right = (1 - crop_width) * _uniform(n, -1, 1, draw)
    down = (1 - crop_height) * _uniform(n, -1, 1, draw)
    mirrored = torch.rand(n, generator=draw) < FLIP_CHANCE
    direction = torch.where(mirrored, -1.0, 1.0)
    zero = torch.zeros(n)
    affine = _affine_matrices((crop_width * direction, zero, right), (zero, crop_height, down))
    return _resample(images, affine, padding="reflection")


def _jitter(images: Tensor, draw: torch.Generator) -> Tensor:
    """Change brightness, contrast and saturation by 0.6 to 1.4 and hue by up to a tenth of a turn, in random order."""
    steps = (_brightness, _contrast, _saturation, hue)
    for index in torch.randperm(len(steps), generator=draw).tolist():
        images = steps[index](images, draw).clamp(0, 1)
    return images


def _brightness(images: Tensor, draw: torch.Generator) -> Tensor:
    """Away from black, or towards it."""
    return images * _jitter_factor(images, draw)


def _contrast(images: Tensor, draw: torch.Generator) -> Tensor:
    """Away from each image's mean brightness, or towards it."""
    mean = grey(images).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, _jitter_factor(images, draw))


def _saturation(images: Tensor, draw: torch.Generator) -> Tensor:
    """Away from the grey image, or towards it."""
    return torch.lerp(grey(images), images, _jitter_factor(images, draw))


def hue(images: Tensor, draw: torch.Generator) -> Tensor:
    """Rotate the colour plane of YIQ: brightness and saturation stay."""
    n = len(images)
    angle = _uniform(n, -HUE, HUE, draw) * 2 * math.pi
    cos = torch.cos(angle)
    sin = torch.sin(angle)
    rotation = torch.zeros(n, 3, 3)
    rotation[:, 0, 0] = 1
    rotation[:, 1, 1] = cos
    rotation[:, 1, 2] = -sin
    rotation[:, 2, 1] = sin
    rotation[:, 2, 2] = cos
    to_rgb = torch.linalg.inv(_YIQ)
    return torch.einsum("nij,njhw->nihw", (to_rgb @ rotation @ _YIQ).to(images.device), images)


def grey(images: Tensor) -> Tensor:
    """Brightness in all three channels, (n, 3, h, w)."""
    weights = torch.tensor(LUMA, device=images.device).view(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True).expand_as(images)


def _affine_matrices(across: tuple[Tensor, ...], down: tuple[Tensor, ...]) -> Tensor:
    """Matrices (n, 2, 3) from the three entries (n,) of each row."""
    return torch.stack([*across, *down], dim=1).view(-1, 2, 3)


def _resample(images: Tensor, affine: Tensor, *, padding: str) -> Tensor:
    """What each image shows at the places that its matrix names."""
    grid = functional.affine_grid(affine.to(images.device), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode=padding, align_corners=False)


def _jitter_factor(images: Tensor, draw: torch.Generator) -> Tensor:
    """A factor (n, 1, 1, 1) near 1 for each image, on the images' device."""
    return _uniform(len(images), 1 - JITTER, 1 + JITTER, draw).view(-1, 1, 1, 1).to(images.device)


def _uniform(n: int, low: float, high: float, draw: torch.Generator) -> Tensor:
    """Numbers (n,) between low and high."""
    share = torch.rand(n, generator=draw)
    return low + (high - low) * share


def _chosen(n: int, chance: float, draw: torch.Generator) -> Tensor:
    """Which images are changed, bool (n, 1, 1, 1)."""
    return (torch.rand(n, generator=draw) < chance).view(-1, 1, 1, 1)
