"""Commands that describe Covey: the methods, and the schema of a scenario."""

from __future__ import annotations

import textwrap

from covey.coordinator.cli.options import out, show_line
from covey.shared.cli import Allow, Json
from covey.shared.storage import json_text


def methods(allow: Allow = None, as_json: Json = False) -> None:
    """List the training methods with their hyper-parameters and defaults.

    A method of another installed package is imported, and its hyper-parameters are listed, only if --allow names it.
    """
    from covey.shared.scenario.describe import methods as described
    from covey.shared.scenario.describe import methods_to_allow

    rows = described()
    if as_json:
        print(json_text.dumps(rows))
        return
    for row in rows:
        _show(f"{row['name']}  {row['summary']} ({row['source']})", "")
        for parameter in row["parameters"]:
            default = json_text.dumps(parameter["default"])
            text = f"{parameter['name']}: {parameter['type']} = {default}"
            if parameter["description"]:
                text += f"   {parameter['description']}"
            _show(text, "    ")
        show_line("")
    for name in methods_to_allow():
        show_line(
            f"{name}  a method of an installed package; --allow {name} lists its hyper-parameters"
        )


def _show(text: str, indent: str) -> None:
    """Lines of the terminal's width, of which all but the first are indented further."""
    lines = textwrap.wrap(
        text, out().width, initial_indent=indent, subsequent_indent=f"{indent}    "
    )
    out().print("\n".join(lines), highlight=False, soft_wrap=True)


def schema() -> None:
    """Print the JSON schema of a scenario, for editors and other tools."""
    from covey.shared.scenario.describe import schema as described

    print(json_text.dumps(described(), indent=1))
