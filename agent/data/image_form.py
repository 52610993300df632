"""The size and the colours of a task's images, and how other images are brought to them (`task.resize`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.shared.scenario.task import Task

if TYPE_CHECKING:
    from PIL.Image import Image

# numbers of PIL.Image.Resampling, because Pillow is imported only to read an image
BICUBIC = 3
FILTERS = {"nearest": 0, "bilinear": 2, "bicubic": BICUBIC}
MODE_OF = {1: "L", 3: "RGB"}  # by number of channels


@dataclass(frozen=True)
class Form:
    """The size and the colours to which all images are brought."""

    channels: int  # 1: grey, 3: RGB
    height: int
    width: int
    resample: int  # Pillow's number of the filter

    @classmethod
    def of(cls, task: Task | None) -> Form | None:
        """The form that a task asks for; None if it leaves images as they are."""
        if task is None or task.resize == "none":
            return None
        channels, height, width = task.features
        return cls(channels, height, width, FILTERS[task.resize])

    def of_image(self, image: Image) -> Image:
        """A grey or RGB image in this form, stretched without regard to its proportions."""
        coloured = image.convert(MODE_OF[self.channels])
        return coloured.resize((self.width, self.height), resample=self.resample)
