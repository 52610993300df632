"""`coordinator lab new-method`: a package with a clustered method to begin with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

import covey
from covey.coordinator.cli.options import show_line
from covey.shared.errors import UserError
from covey.shared.storage.files import naming

TEMPLATE = Path(covey.__file__).parent / "examples" / "my_method"
NAME = "my_method"  # of the template, in its files and in their names
CLASS = "MyMethod"


def new_method(
    name: Annotated[str, typer.Argument(help="the method's name, such as my_method")] = NAME,
) -> None:
    """Write a package with a clustered method, its test, and a scenario that compares it with others.

    The method is a working one: install the package, run the comparison, then change it.
    """
    folder = write_method(name, Path.cwd())
    show_line(f"{folder.name} has a method, its test and a scenario; to try it:")
    show_line(f"  pip install ./{folder.name}")
    show_line(f"  coordinator compare {name}/{name}.yaml --allow {name} --in-process")


def write_method(name: str, where: Path) -> Path:
    """Copy the template under a name into a new folder.

    Raises:
        UserError: the name is none of a Python module, a built-in method has it, or the folder exists.
    """
    from covey.shared.strategies.method_names import places

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"{name!r}: expected a name of small letters, digits and _, such as {NAME}")
    if name in places():
        raise UserError(f"{name} is a built-in method; choose another name")
    folder = where / name
    if folder.exists():
        raise UserError(f"{folder} exists already; choose another name")
    folder.mkdir()
    title = "".join(word.capitalize() for word in name.split("_"))
    for file in sorted(TEMPLATE.iterdir()):
        if file.is_file():
            text = file.read_text("utf-8").replace(NAME, name).replace(CLASS, title)
            written = folder / file.name.replace(NAME, name)
            with naming(written):
                written.write_text(text, "utf-8")
    return folder
