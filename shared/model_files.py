"""The files of a run's models: cluster-0.safetensors and so on, in one folder."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".safetensors"


def model_file(models: Path, cluster: int) -> Path:
    """The file of one cluster's model in the folder `models`."""
    return models / f"cluster-{cluster}{SUFFIX}"


def model_files(models: Path) -> list[Path]:
    """All model files in a folder, by number: cluster 10 comes after cluster 9."""
    return sorted(models.glob(f"cluster-*{SUFFIX}"), key=_by_number)


def _by_number(path: Path) -> tuple[int, str]:
    name = path.name
    return len(name), name
