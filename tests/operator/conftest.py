"""What the operator's tests share."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="write tests/data/operator/golden anew instead of comparing with it (run as: pytest tests/operator --update-golden)",
    )
