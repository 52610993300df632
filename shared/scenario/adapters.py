"""Low-rank adapters: next to a frozen weight W of a layer, the product B A of two small matrices trains.

    W + (alpha / rank) * B A        A (rank, in), B (out, rank); B begins at zero

Hu et al. 2022, LoRA: Low-Rank Adaptation of Large Language Models. Agents have the same A, which the seed determines and which
does not train: the mean of their products then is the product of their mean (Sun et al. 2024, FFA-LoRA).
"""

from __future__ import annotations

from pydantic import Field

from covey.shared.scenario.section import Section, TensorPattern

A, B = "lora_a", "lora_b"  # tensors that a layer with an adapter has in addition
TRAINED = (f"*.{B}",)  # patterns of those that train


class Adapters(Section):
    """Low-rank adapters of a model's linear and convolutional layers."""

    rank: int = Field(4, ge=1, le=1024, description="Rows of A, columns of B.")
    alpha: float = Field(
        8.0, gt=0, description="The product of both matrices counts alpha / rank times."
    )
    targets: tuple[TensorPattern, ...] = Field(
        ("*",),
        min_length=1,
        max_length=1000,
        description="Layers that get an adapter: names of modules, with * and ? as wildcards. The default takes all linear and "
        "convolutional layers but the last, which is the head.",
    )
