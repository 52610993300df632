"""A model that fits the shape of the data. Pure."""

from __future__ import annotations

from covey.shared.proposal.choices import Choice

ROWS_PER_INPUT = 20  # over all devices; with fewer, a linear model generalises better
HIDDEN = 32
MIN_WINDOW = 4  # readings that cnn1d needs
MIN_LENET = 16  # pixels a side
MIN_RESNET = 32


def table_model(inputs: int, rows: int) -> Choice:
    """For rows of a table.

    Args:
        inputs: of the model.
        rows: of all devices.
    """
    if rows < ROWS_PER_INPUT * inputs:
        why = (
            f"{rows} rows for {inputs} inputs are few: a linear model; try {{name: mlp, options: "
            f"{{hidden: {HIDDEN}}}}}"
        )
        return Choice({"name": "linear"}, why)
    why = f"{rows} rows for {inputs} inputs are enough for a hidden layer"
    return Choice({"name": "mlp", "options": {"hidden": HIDDEN}}, why)


def window_model(length: int) -> Choice:
    """For windows of sensor readings, or other series of `length` values per channel."""
    if length < MIN_WINDOW:
        return Choice({"name": "mlp"}, f"{length} readings are too few for a convolution")
    return Choice({"name": "cnn1d"}, "convolutions over time")


def image_model(channels: int, side: int) -> Choice:
    """For images whose smaller side has `side` pixels."""
    if side < MIN_LENET:
        return Choice(
            {"name": "mlp"}, f"{side} pixels a side are too few for a convolution network"
        )
    if side < MIN_RESNET or channels == 1:
        return Choice({"name": "lenet5"}, "a small convolution network for small or grey images")
    return Choice(
        {"name": "resnet9"},
        "6.6 million parameters, for colour images; lenet5 is smaller and faster",
    )
