"""Fixtures for every component's tests."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.cluster"]

# How long an example takes is the machine's matter: one that stands still for seconds would fail any of them.
settings.register_profile("stalls", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("stalls")
