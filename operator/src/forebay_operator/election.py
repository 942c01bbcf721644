"""The Lease of the election (`forebay_api.election`) on the API server."""

from dataclasses import dataclass

from forebay_api.election import LeaseConflictError
from forebay_operator.cluster import Cluster
from forebay_operator.errors import ApiConflictError
from forebay_operator.resources import LEASE, Manifest


@dataclass(frozen=True, slots=True)
class ClusterLease:
    """The three calls of an elector, on one Lease. Failures are `ApiError`s, which the elector counts as missed attempts."""

    cluster: Cluster
    namespace: str
    name: str

    async def read(self) -> Manifest | None:
        """The Lease, or None."""
        return await self.cluster.get(LEASE, self.namespace, self.name)

    async def create(self, spec: Manifest) -> None:
        """Create the Lease; LeaseConflictError when it exists."""
        try:
            await self.cluster.create(
                LEASE, {"metadata": {"namespace": self.namespace, "name": self.name}, "spec": spec}
            )
        except ApiConflictError as e:
            raise LeaseConflictError(str(e)) from e

    async def replace(self, lease: Manifest) -> None:
        """Replace the Lease at its resource version; LeaseConflictError when that has passed."""
        try:
            await self.cluster.replace(LEASE, lease)
        except ApiConflictError as e:
            raise LeaseConflictError(str(e)) from e
