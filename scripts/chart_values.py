"""The table of the chart's values in docs/install.md: meanings from values.schema.json, defaults from values.yaml.

The three components share most of their values; those stand once, under `<component>`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts/forebay"
PAGE = "docs/install.md"
BEGIN = "<!-- values: written by `make generate` -->"
END = "<!-- end of values -->"
COMPONENTS = ("operator", "router", "autoscaler")

Row = tuple[str, str, str]
"""Value, default, meaning."""


def _leaves(node: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Each value below a schema node with its description; objects that are open or have no fields are leaves."""
    for name, child in node.get("properties", {}).items():
        whole = {**definitions[child["$ref"].rsplit("/", 1)[1]], **child} if "$ref" in child else child
        here = f"{path}.{name}".removeprefix(".")
        if whole.get("properties"):
            yield from _leaves(whole, definitions, here)
        else:
            yield here, whole["description"]


def _default(values: Mapping[str, Any], path: str) -> str | None:
    """A value's default as it is written on a command line; None when the chart sets none."""
    value: Any = values
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
    return '""' if value == "" else text


def _twins(path: str) -> list[str]:
    """The same value of each component, for a component's value."""
    top, _, rest = path.partition(".")
    return [f"{component}.{rest}" for component in COMPONENTS] if top in COMPONENTS else []


def _rows() -> list[Row]:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    described = dict(_leaves(schema, schema["$defs"], ""))

    def general(path: str) -> Row | None:
        """The row of a value, without the name of its component; None when the chart has no default for it."""
        component, default = path.partition(".")[0], _default(values, path)
        if path not in described or default is None:
            return None
        if component not in COMPONENTS:
            return path, default, described[path]
        return path.replace(component, "<component>", 1), default, described[path].replace(component, "<component>")

    shared = {path for path in described if (twins := _twins(path)) and len({general(twin) for twin in twins}) == 1}
    rows = []
    for path, text in described.items():
        row = general(path)
        if row is None:
            continue
        if path not in shared:
            rows.append((path, row[1], text))
        elif row not in rows:
            rows.append(row)
    return rows


def _shown(path: str, default: str) -> str:
    """The default; long ones are left to the file."""
    return f"`{default}`" if len(default) <= 70 else f"see `{path.partition('.')[0]}` in values.yaml"


def render_table() -> str:
    """The table as Markdown."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, text in _rows():
        cells = (f"`{path}`", _shown(path, default), text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def install_page() -> dict[str, str]:
    """The page with its table up to date."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return {PAGE: f"{before}{BEGIN}\n\n{render_table()}\n\n{END}{after}"}
