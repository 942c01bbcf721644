"""Fixtures for every component's tests."""

pytest_plugins = ["tests.support.cluster"]
