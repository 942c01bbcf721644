"""Write, or with --check compare, every generated file of the repository.

Each generator returns path -> text. One list of them; `make generate` runs it, `make check` checks it.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from chart_values import install_page
from code_map import render_code_map
from forebay_api.crds import DEFINITIONS, render_crd
from metric_table import render_metrics

ROOT = Path(__file__).resolve().parent.parent


def crds() -> dict[str, str]:
    """The CRDs, where the chart's template reads them."""
    return {f"charts/forebay/crds/{one.plural}.yaml": render_crd(one) for one in DEFINITIONS}


def metrics() -> dict[str, str]:
    """The table of all metrics."""
    return {"docs/metrics.md": render_metrics()}


def code_map() -> dict[str, str]:
    """Every module in one sentence."""
    return {"docs/code-map.md": render_code_map(ROOT)}


GENERATORS: tuple[Callable[[], dict[str, str]], ...] = (crds, install_page, metrics, code_map)


def main() -> int:
    """Write or compare; exit status 1 when a file is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only, and fail when a file differs")
    check = parser.parse_args().check
    stale = []
    for generator in GENERATORS:
        for name, text in generator().items():
            path = ROOT / name
            if path.exists() and path.read_text(encoding="utf-8") == text:
                continue
            stale.append(name)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                print(f"wrote {name}")
    if check and stale:
        print(
            "out of date: " + ", ".join(stale) + "\nrun `make generate` and commit the result",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
