"""Augmentation of images: shapes, ranges, and what each kind of change does to an image."""

import math

import pytest
import torch
from torch import Tensor

from covey.agent.training import augment
from covey.agent.training.augment import (
    augment_handwriting,
    augment_natural,
    augmentation_for,
    augmentation_of_training,
    shift,
    shift_and_flip,
)
from covey.shared.errors import UserError


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(channels: int, n: int = 64, size: int = 16) -> Tensor:
    return torch.rand(n, channels, size, size, generator=draw(9))


@pytest.mark.parametrize(("view", "channels"), [(augment_natural, 3), (augment_handwriting, 1)])
def test_views_keep_shape_and_range_and_follow_their_generator(
    view: augment.Augmentation, channels: int
) -> None:
    x = images(channels)
    seen = view(x, draw())
    assert seen.shape == x.shape
    assert seen.min() >= 0
    assert seen.max() <= 1
    assert torch.equal(view(x, draw()), seen)
    assert not torch.equal(view(x, draw(1)), seen)
    assert not torch.equal(
        seen[0], view(x[:1].expand(2, -1, -1, -1), draw())[1]
    )  # each image its own numbers


def test_handwriting_is_never_mirrored_and_stays_near_its_place() -> None:
    left = torch.zeros(200, 1, 20, 20)
    left[:, :, 6:14, 2:6] = 1
    seen = augment_handwriting(left, draw())
    across = torch.arange(20.0)
    centre = (seen.sum(dim=(1, 2)) * across).sum(dim=1) / seen.sum(dim=(1, 2, 3))
    assert centre.max() < 9.5  # 3.5 + 2 of shift + about 1.5 of turn and zoom
    assert centre.std() > 0.5


def test_a_view_turns_in_pixels_also_where_images_are_not_square() -> None:
    square = torch.zeros(300, 1, 60, 30)
    square[:, :, 22:38, 7:23] = 1
    seen = augment_handwriting(square, draw())[:, 0]
    down, across = (
        axis.reshape(-1)
        for axis in torch.meshgrid(torch.arange(60.0), torch.arange(30.0), indexing="ij")
    )
    shapes = []
    for weights in seen.reshape(300, -1):
        narrow, wide = torch.linalg.eigvalsh(
            torch.cov(torch.stack([down, across]), aweights=weights)
        ).tolist()
        shapes.append(math.sqrt(wide / narrow))
    assert max(shapes) < 1.05  # a turn keeps a square as long as it is wide, a shear does not
    area = seen.sum(dim=(1, 2))
    assert 256 * 0.9**2 * 0.97 < area.min() < 256 * 0.9
    assert 256 * 1.1 < area.max() < 256 * 1.1**2 * 1.03


def test_natural_views_flip_half_and_show_grey_a_fifth() -> None:
    ramp = torch.linspace(0.2, 0.8, 16).expand(600, 3, 16, 16).clone()
    ramp[:, 0] *= 0.9
    ramp[:, 2] *= 0.5
    seen = augment_natural(ramp, draw())
    falling = (
        (seen[:, :, :, 0].mean(dim=(1, 2)) > seen[:, :, :, -1].mean(dim=(1, 2))).float().mean()
    )
    assert 0.42 < falling < 0.58
    grey = (seen.std(dim=1).amax(dim=(1, 2)) < 1e-6).float().mean()
    assert 0.14 < grey < 0.27


def test_a_crop_shows_a_fifth_to_the_whole_of_the_area() -> None:
    ramp = torch.linspace(0, 1, 32).expand(400, 3, 32, 32)
    seen = augment.crop(ramp, draw())
    width = seen.amax(dim=(1, 2, 3)) - seen.amin(dim=(1, 2, 3))
    assert 0.3 < width.min() < 0.5  # sqrt(0.2 * 3/4) = 0.39
    assert width.max() > 0.95


def test_hue_keeps_brightness() -> None:
    x = images(3) * 0.4 + 0.3
    turned = augment.hue(x, draw())
    assert torch.allclose(augment.grey(turned), augment.grey(x), atol=1e-3)
    assert not torch.allclose(turned, x, atol=0.02)


@pytest.mark.parametrize("features", [(12,), (9, 128), (4, 8, 8)])
def test_features_that_are_no_images_have_no_views(features: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"strategy\.beta"):
        augmentation_for(features)


def test_an_image_moves_by_whole_pixels_up_to_an_eighth_and_nothing_else_changes() -> None:
    x = images(3, n=200)
    moved = shift(x, draw())
    places: set[tuple[int, int]] = set()
    for before, after in zip(x, moved, strict=True):
        found = [
            (down, right)
            for down in range(-2, 3)
            for right in range(-2, 3)
            if torch.equal(after, _moved(before, down, right))
        ]
        assert len(found) == 1
        places.update(found)
    assert len(places) == 25  # all of them, in both directions
    assert torch.equal(shift(x, draw()), moved)


def _moved(image: Tensor, down: int, right: int) -> Tensor:
    """The image moved by hand, with 0 where nothing is left."""
    _, height, width = image.shape
    moved = torch.zeros_like(image)
    for row in range(max(0, -down), min(height, height - down)):
        first, last = max(0, -right), min(width, width - right)
        moved[:, row, first:last] = image[:, row + down, first + right : last + right]
    return moved


def test_half_of_the_images_are_mirrored_too() -> None:
    ramp = torch.linspace(1, 2, 32).expand(400, 1, 32, 32)
    seen = shift_and_flip(ramp, draw())
    falling = (seen[:, 0, 16, 8] > seen[:, 0, 16, 24]).float().mean()
    assert 0.42 < falling < 0.58


def test_each_name_of_the_setting_has_its_change() -> None:
    assert augmentation_of_training("none") is None
    assert augmentation_of_training("shift") is shift
    assert augmentation_of_training("shift_flip") is shift_and_flip
