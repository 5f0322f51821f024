"""Write anew what the shell completes: the options of all commands.

python -m docs.build.completion
"""

from __future__ import annotations

import json
from typing import Any

from smidgen.cli import app
from smidgen.cli.completion.table import TABLE, describe_command


def describe_commands() -> dict[str, list[dict[str, Any]]]:
    """List the options of every command of smidgen's own."""
    return {name: describe_command(app._load_command(name)) for name in app._COMMANDS}


def format_table(table: dict[str, list[dict[str, Any]]]) -> str:
    """Write the table as JSON, one line an option, so that branches merge."""
    commands = []
    for name, options in table.items():
        lines = ",\n".join("  " + json.dumps(each, ensure_ascii=False) for each in options)
        commands.append(f' "{name}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(commands) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(format_table(describe_commands()), encoding="utf-8", newline="\n")
    print(f"wrote {TABLE.name}")
