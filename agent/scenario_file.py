"""A scenario from its file, as every command and worker of the agent reads it."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from shared.errors import UserError
from shared.scenario import Scenario, named_files


def load_scenario(path: Path) -> Scenario:
    """A scenario file, its paths made absolute. Raises UserError that names the key that is wrong."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            for (section, key), file in named_files(data, path.parent).items():
                data[section][key] = str(file)
        return Scenario.model_validate(data)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; a scenario file is wanted") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {error}") from None
    except ValidationError as error:
        faults = "\n".join(f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"{path}: {error.error_count()} mistake(s)\n{faults}") from None
