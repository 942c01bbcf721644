"""What the local cluster's tests share."""

from tests.localcluster.golden import same_as_golden

__all__ = ["same_as_golden"]
