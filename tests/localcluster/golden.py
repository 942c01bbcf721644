"""Compare a text with a file under tests/data/localcluster, or write that file anew."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "localcluster"

Compare = Callable[[str, str], None]


@pytest.fixture
def same_as_golden() -> Compare:
    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(text)
        assert text == path.read_text(), (
            f"{name} changed; look at the difference, then: UPDATE_GOLDEN=1 pytest tests/localcluster"
        )

    return compare
