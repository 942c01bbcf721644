"""The modules of the router form layers."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import forebay_router

ROOT = Path(forebay_router.__file__).parent


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Modules of the router that a file names in an import, also one for types only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules


def test_no_module_imports_itself_by_a_detour():
    paths = {
        ".".join(("forebay_router", *path.relative_to(ROOT).with_suffix("").parts)): path for path in ROOT.rglob("*.py")
    }
    graph = {name: imports_of(path, set(paths)) for name, path in paths.items()}
    assert "forebay_router.errors" in graph["forebay_router.answer"]
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert order.index("forebay_router.errors") < order.index("forebay_router.answer")
