"""The built-in models, each written once: of the layers of torch, or of sketches of them (`sketch`).

Every builder takes (nn, features, outputs, **options): where its layers come from, the shape of one sample, channels first,
and the number of outputs. Layers are declared in the order of the forward pass, so that the last declared one is the final
layer. Weights are torch's defaults.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from covey.shared.errors import PublicError
from covey.shared.own_code.consent import BUILT_IN_MODELS

MAX_LAYERS = 64
GROUP_OF_CNN4 = 8  # channels that its group norm treats together

# filters and number of the convolutions between two poolings (Simonyan and Zisserman 2015, table 1, column D)
VGG16_GROUPS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))

# expansion, filters, repeats and stride of the blocks (Sandler et al. 2018, table 2)
MOBILENET_GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
SMALL_IMAGE = 64  # pixels a side

Features = tuple[int, ...]
Builder = Callable[..., Any]  # (nn, features, outputs, **options) -> layers


def linear(nn: Any, features: Features, outputs: int) -> Any:
    """Multinomial logistic regression, or linear regression: 7 850 parameters for (1, 28, 28) and 10 classes."""
    return nn.Net(flatten=nn.Flatten(), fc=nn.Linear(math.prod(features), outputs))


def mlp(nn: Any, features: Features, outputs: int, *, hidden: int | list[int] = 200) -> Any:
    """Fully connected layers with ReLU.

    For (1, 28, 28) and 10 classes it has 159 010 parameters; with `hidden` [200, 200] it is the 2NN of McMahan et al.
    2017 with 199 210.
    """
    hidden_widths = [hidden] if isinstance(hidden, int) else hidden
    if len(hidden_widths) >= MAX_LAYERS:
        raise PublicError(
            f"task.model.options.hidden has {len(hidden_widths)} layers; use fewer than {MAX_LAYERS}"
        )
    widths = [math.prod(features), *hidden_widths]
    layers: dict[str, Any] = {"flatten": nn.Flatten()}
    for number, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        layers[f"fc{number}"] = nn.Linear(before, after)
        layers[f"relu{number}"] = nn.ReLU()
    layers[f"fc{len(widths)}"] = nn.Linear(widths[-1], outputs)
    return nn.Net(**layers)


def lenet5(nn: Any, features: Features, outputs: int) -> Any:
    """LeNet-5 (LeCun et al. 1998) without padding, with ReLU and max pooling.

    44 426 parameters for (1, 28, 28), 62 006 for (3, 32, 32), with 10 classes.
    """
    channels, height, width = _image_shape(features, "lenet5", 16)
    pooled_height = ((height - 4) // 2 - 4) // 2
    pooled_width = ((width - 4) // 2 - 4) // 2
    return nn.Net(
        conv1=nn.Conv2d(channels, 6, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * pooled_height * pooled_width, 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        fc3=nn.Linear(84, outputs),
    )


def cnn1d(nn: Any, features: Features, outputs: int, *, filters: int = 32, hidden: int = 64) -> Any:
    """Two convolutions of width 5 over sensor windows (channels, length), then 8 averaged positions and two linear layers.

    A small network of our own, after no paper: 44 998 parameters for UCI HAR's (9, 128) and 6 classes.
    """
    if len(features) != 2 or features[1] < 4:
        raise PublicError(
            f"task.model cnn1d: features {list(features)}; expected [channels, length] with a "
            "length of at least 4"
        )
    channels = features[0]
    positions = 8
    return nn.Net(
        conv1=nn.Conv1d(channels, filters, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool1d(2),
        conv2=nn.Conv1d(filters, 2 * filters, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool1d(2),
        average=nn.AdaptiveAvgPool1d(positions),
        flatten=nn.Flatten(),
        fc1=nn.Linear(2 * filters * positions, hidden),
        relu3=nn.ReLU(),
        fc2=nn.Linear(hidden, outputs),
    )


def cnn4(nn: Any, features: Features, outputs: int, *, filters: int = 32) -> Any:
    """Four convolutions of 3x3 with group norm (Wu and He 2018) and one linear layer, between LeNet-5 and ResNet-9.

    A small network of our own, after no paper: 262 026 parameters for (3, 32, 32) and 10 classes. Group norm treats each
    sample alone, so that the model works in batches of any size and has no buffers.

    Args:
        features: [channels, height, width] of at least 8x8.
        outputs: of the last layer.
        filters: of the first convolution, a multiple of 8. The others have two, four and four times as many.
    """
    channels, height, width = _image_shape(features, "cnn4", 8)
    if filters < GROUP_OF_CNN4 or filters % GROUP_OF_CNN4:
        raise PublicError(
            f"task.model.options.filters is {filters!r}; expected a multiple of {GROUP_OF_CNN4}"
        )
    first = filters
    second = 2 * filters
    third = 4 * filters
    return nn.Net(
        conv1=nn.Conv2d(channels, first, 3, padding=1),
        norm1=nn.GroupNorm(first // GROUP_OF_CNN4, first),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(first, second, 3, padding=1),
        norm2=nn.GroupNorm(second // GROUP_OF_CNN4, second),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(second, third, 3, padding=1),
        norm3=nn.GroupNorm(third // GROUP_OF_CNN4, third),
        relu3=nn.ReLU(),
        conv4=nn.Conv2d(third, third, 3, padding=1),
        norm4=nn.GroupNorm(third // GROUP_OF_CNN4, third),
        relu4=nn.ReLU(),
        pool4=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc=nn.Linear(third * (height // 8) * (width // 8), outputs),
    )


def resnet9(nn: Any, features: Features, outputs: int) -> Any:
    """A residual network (He et al. 2016) of 9 layers with group norm (Wu and He 2018) in place of batch norm.

    6 575 370 parameters for (3, 32, 32) and 10 classes.
    """
    channels, height, width = _image_shape(features, "resnet9", 32)
    return nn.Net(
        prep=_convolution(nn, channels, 64),
        layer1=_pooled_convolution(nn, 64, 128),
        residual1=nn.Residual(_convolution(nn, 128, 128), _convolution(nn, 128, 128)),
        layer2=_pooled_convolution(nn, 128, 256),
        layer3=_pooled_convolution(nn, 256, 512),
        residual3=nn.Residual(_convolution(nn, 512, 512), _convolution(nn, 512, 512)),
        pool=nn.MaxPool2d(4),
        flatten=nn.Flatten(),
        fc=nn.Linear(512 * (height // 32) * (width // 32), outputs),
    )


def _convolution(nn: Any, before: int, after: int) -> Any:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(32, after), nn.ReLU())


def _pooled_convolution(nn: Any, before: int, after: int) -> Any:
    return _convolution(nn, before, after).append(nn.MaxPool2d(2))


def mobilenet(nn: Any, features: Features, outputs: int, *, width: float = 1.0) -> Any:
    """MobileNetV2 (Sandler et al. 2018, table 2) with group norm (Wu and He 2018) in place of batch norm.

    2 236 682 parameters for (3, 32, 32) and 10 classes. Images of less than 64 pixels a side keep their size in the first
    two of five halvings.

    Args:
        features: [channels, height, width] of at least 16x16.
        outputs: of the last layer.
        width: factor of the channels, at least 0.25; their numbers are multiples of 8.
    """
    channels, *sides = _image_shape(features, "mobilenet", 16)
    if not isinstance(width, int | float) or not 0.25 <= width <= 4:
        raise PublicError(
            f"task.model.options.width is {width!r}; expected a number from 0.25 to 4"
        )
    is_small = min(sides) < SMALL_IMAGE
    before = _eighths(32 * width)
    layers: dict[str, Any] = {
        "stem": _normed(nn, nn.Conv2d(channels, before, 3, 1 if is_small else 2, 1, bias=False))
    }
    number = 0
    for expansion, filters, repeats, stride in MOBILENET_GROUPS:
        after = _eighths(filters * width)
        for repeat in range(repeats):
            number += 1
            halves = stride == 2 and repeat == 0 and not (is_small and filters == 24)
            layers[f"block{number}"] = _inverted(nn, before, after, expansion, 2 if halves else 1)
            before = after
    last = max(1280, _eighths(1280 * width))
    layers["last"] = _normed(nn, nn.Conv2d(before, last, 1, bias=False))
    return nn.Net(
        **layers, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(last, outputs)
    )


def _eighths(filters: float) -> int:
    """The nearest multiple of 8, at least 8."""
    return max(8, 8 * round(filters / 8))


def _normed(nn: Any, convolution: Any, *, is_last: bool = False) -> Any:
    """A convolution with group norm in groups of 8 channels and, unless it is the last of a block, ReLU6."""
    filters = convolution.out_channels
    layers = nn.Sequential(convolution, nn.GroupNorm(filters // 8, filters))
    return layers if is_last else layers.append(nn.ReLU6())


def _inverted(nn: Any, before: int, after: int, expansion: int, stride: int) -> Any:
    """An inverted residual block: wider, a convolution of each channel alone, narrower again."""
    inside = before * expansion
    layers = [
        *([] if expansion == 1 else [_normed(nn, nn.Conv2d(before, inside, 1, bias=False))]),
        _normed(nn, nn.Conv2d(inside, inside, 3, stride, 1, groups=inside, bias=False)),
        _normed(nn, nn.Conv2d(inside, after, 1, bias=False), is_last=True),
    ]
    return nn.Residual(*layers) if stride == 1 and before == after else nn.Sequential(*layers)


def autoencoder(
    nn: Any, features: Features, outputs: int, *, hidden: list[int] | None = None
) -> Any:
    """For `task.anomalies`: fully connected layers with ReLU, 64, 8 and 64 wide, and as many outputs as inputs."""
    if outputs != 2:
        raise PublicError("task.model autoencoder: the task needs the key anomalies")
    layers = mlp(nn, features, math.prod(features), hidden=hidden or [64, 8, 64])
    return nn.Autoencoder(layers)


def gru(nn: Any, features: Features, outputs: int, *, hidden: int = 64) -> Any:
    """A gated recurrent unit (Cho et al. 2014) over windows (channels, length), and a linear layer on its last state.

    14 790 parameters for UCI HAR's (9, 128) and 6 classes.
    """
    if len(features) != 2:
        raise PublicError(f"task.model gru: features {list(features)}; expected [channels, length]")
    return nn.Net(
        gru=nn.LastState(features[0], hidden, batch_first=True), fc=nn.Linear(hidden, outputs)
    )


def femnist_cnn(nn: Any, features: Features, outputs: int, *, hidden: int = 2048) -> Any:
    """LEAF's model for FEMNIST (Caldas et al. 2018): 6 603 710 parameters for (1, 28, 28) and 62 classes.

    With `hidden` 248 it is the model of FeSEM (Long et al. 2023), 845 510 parameters.
    """
    channels, height, width = _image_shape(features, "femnist_cnn", 4)
    return nn.Net(
        conv1=nn.Conv2d(channels, 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * (height // 4) * (width // 4), hidden),
        relu3=nn.ReLU(),
        fc2=nn.Linear(hidden, outputs),
    )


def celeba_cnn(
    nn: Any,
    features: Features,
    outputs: int,
    *,
    blocks: int = 4,
    bn_mode: Literal["running", "batch"] = "running",
) -> Any:
    """LEAF's model for CelebA (Caldas et al. 2018): 31 202 parameters for (3, 84, 84) and 2 classes.

    `bn_mode` "running" tests with running statistics, "batch" with those of the batch.
    """
    channels, height, width = _image_shape(features, "celeba_cnn", 2)
    if bn_mode not in {"running", "batch"}:
        raise PublicError(f"task.model.options.bn_mode is {bn_mode!r}; expected running or batch")
    if blocks > MAX_LAYERS:
        raise PublicError(f"task.model.options.blocks is {blocks}; use at most {MAX_LAYERS}")
    filters = 32
    track = bn_mode == "running"
    layers: dict[str, Any] = {}
    for number in range(1, blocks + 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
        layers[f"bn{number}"] = nn.BatchNorm2d(filters, momentum=0.1, track_running_stats=track)
        layers[f"pool{number}"] = nn.MaxPool2d(2, ceil_mode=True)
        layers[f"relu{number}"] = nn.ReLU()
        channels = filters
        height = (height + 1) // 2
        width = (width + 1) // 2
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(filters * height * width, outputs)
    return nn.Net(**layers)


def vgg16(nn: Any, features: Features, outputs: int, *, dropout: float = 0.0) -> Any:
    """VGG16 (Simonyan and Zisserman 2015) for small images: its 13 convolutions, and hidden layers of 512 instead of 4096.

    15 245 130 parameters for (3, 32, 32) and 10 classes.
    """
    channels, height, width = _image_shape(features, "vgg16", 32)
    layers: dict[str, Any] = {}
    number = 0
    for group, (filters, repeats) in enumerate(VGG16_GROUPS, start=1):
        for _ in range(repeats):
            number += 1
            layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
            layers[f"relu{number}"] = nn.ReLU()
            channels = filters
        layers[f"pool{group}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    before = channels * (height // 32) * (width // 32)
    hidden = 512
    for number in (1, 2):
        layers[f"fc{number}"] = nn.Linear(before, hidden)
        layers[f"relu_fc{number}"] = nn.ReLU()
        if dropout:
            layers[f"dropout{number}"] = nn.Dropout(dropout)
        before = hidden
    layers["fc3"] = nn.Linear(hidden, outputs)
    return nn.Net(**layers)


def _image_shape(features: Features, model: str, smallest: int) -> tuple[int, int, int]:
    """(channels, height, width) of at least `smallest` pixels a side. Raises PublicError for anything else."""
    if len(features) != 3 or min(features[1:]) < smallest:
        raise PublicError(
            f"task.model {model}: features {list(features)}; expected images "
            f"[channels, height, width] of at least {smallest}x{smallest}"
        )
    channels, height, width = features
    return channels, height, width


_ALL = (
    lenet5,
    mlp,
    linear,
    cnn1d,
    gru,
    autoencoder,
    cnn4,
    mobilenet,
    resnet9,
    femnist_cnn,
    celeba_cnn,
    vgg16,
)
BUILDERS: Mapping[str, Builder] = {builder.__name__: builder for builder in _ALL}
assert tuple(BUILDERS) == BUILT_IN_MODELS  # noqa: S101
