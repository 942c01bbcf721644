"""Leases of other replicas, counted in this replica's loads.

A claim adds itself to its worker's load when it is taken and takes exactly that away when it ends, so no order of events makes
a load negative. Claims on workers that are not known here (yet: watches differ by moments) wait for them. In a worker's backlog,
claims have negative numbers, since this router's own leases have positive ones.

Only loads change. What this router counts of its own requests is untouched.
"""

from dataclasses import dataclass, field

from forebay_router.mesh.messages import Taken
from forebay_router.predicting import Load


@dataclass(slots=True)
class Claim:
    """One lease of another replica."""

    number: int
    """Negative, of this replica."""
    worker: str
    prompt_tokens: int
    """Still to be computed."""
    output_tokens: int
    visible: bool
    sent_s: float
    """Monotonic, of this replica."""


@dataclass(slots=True)
class Claims:
    """All of them, by worker."""

    loads: dict[str, Load] = field(default_factory=dict)
    """Of the workers that are known here."""
    by_worker: dict[str, dict[int, Claim]] = field(default_factory=dict)
    count: int = 0
    _numbered: int = 0

    # -- workers ------------------------------------------------------------------------------------------------------

    def add_worker(self, worker: str, load: Load, now_s: float) -> None:
        """Know a worker: claims that were told before it was seen count from now on."""
        self.loads[worker] = load
        for claim in self.by_worker.get(worker, {}).values():
            _add(load, claim, now_s)

    def drop_worker(self, worker: str, load: Load) -> None:
        """Forget a worker, unless another one has taken its name since. Its claims stay until they end: it may come back."""
        if self.loads.get(worker) is load:
            del self.loads[worker]

    # -- claims -------------------------------------------------------------------------------------------------------

    def take(self, taken: Taken, now_s: float) -> Claim:
        """A lease was taken elsewhere."""
        self._numbered += 1
        claim = Claim(
            number=-self._numbered,
            worker=taken.worker,
            prompt_tokens=max(0, taken.prompt_tokens),
            output_tokens=max(0, taken.output_tokens),
            visible=taken.visible,
            sent_s=now_s - max(0, taken.age_ms) / 1000,
        )
        self.by_worker.setdefault(claim.worker, {})[claim.number] = claim
        self.count += 1
        load = self.loads.get(claim.worker)
        if load is not None:
            _add(load, claim, now_s)
        return claim

    def computed(self, claim: Claim, now_s: float) -> None:
        """Its first token came."""
        load = self.loads.get(claim.worker)
        if load is not None and claim.prompt_tokens:
            load.backlog.computed(claim.number, now_s)
            load.prompt_tokens -= claim.prompt_tokens
        claim.prompt_tokens = 0

    def release(self, claim: Claim, now_s: float) -> None:
        """It ended. Once."""
        of_worker = self.by_worker[claim.worker]
        del of_worker[claim.number]
        if not of_worker:
            del self.by_worker[claim.worker]
        self.count -= 1
        load = self.loads.get(claim.worker)
        if load is None:
            return
        load.requests -= 1
        load.prompt_tokens -= claim.prompt_tokens
        load.output_tokens -= claim.output_tokens
        if claim.prompt_tokens:
            load.backlog.drop(claim.number, now_s)


def _add(load: Load, claim: Claim, now_s: float) -> None:
    load.requests += 1
    load.prompt_tokens += claim.prompt_tokens
    load.output_tokens += claim.output_tokens
    if claim.prompt_tokens:
        load.backlog.add(claim.number, claim.prompt_tokens, min(now_s, claim.sent_s), visible=claim.visible)
