"""Where a run leaves its clusters' models: cluster-0.safetensors and so on, in one folder."""

from __future__ import annotations

from pathlib import Path


def model_file(models: Path, cluster: int) -> Path:
    return models / f"cluster-{cluster}.safetensors"


def model_files(models: Path) -> list[Path]:
    """All that are there, by cluster: 10 comes after 9."""
    return sorted(
        models.glob("cluster-*.safetensors"), key=lambda path: (len(path.name), path.name)
    )
