"""Workers from Kubernetes: pods by label, model services by their resource, in all namespaces or in some.

A pod's service may be listed after the pod, so both are kept as they were seen and put into the table when both are there.
What is known stays in use while the API server cannot be reached. Ready, for the router as a whole, is the first complete list
of both kinds in every namespace. AcceleratorClasses are followed too, for the capacity model's speeds; without the right to read
them (they are cluster-scoped) an assumed speed stands in until the workers' own is learnt.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from forebay_api import names
from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_router.discovery.apiserver import ApiServer
from forebay_router.discovery.cards import read_cards
from forebay_router.discovery.listwatch import Api, Follower, Object
from forebay_router.discovery.objects import read_service, read_worker, service_key
from forebay_router.errors import WorkerFailure
from forebay_router.supervision import Background, Supervisor
from forebay_router.table import ServiceKey, Worker, WorkerSpec, WorkerState, WorkerTable
from forebay_router.upstream import Upstreams

log = logging.getLogger(__name__)

POD_SELECTOR = f"{names.MODEL_SERVICE_LABEL},{names.COMPONENT_LABEL}={names.WORKER_COMPONENT}"
CARDS_INTERVAL_S = 2.0
CARDS_TIMEOUT_S = 2.0
CARDS_AT_ONCE_MAX = 16


@dataclass(slots=True)
class KubernetesDiscovery:
    """Keeps the table from watches."""

    table: WorkerTable
    namespaces: tuple[str, ...]
    """Empty is all of them."""
    upstreams: Upstreams
    api: Api | None = None
    """The API server; connected to when absent."""
    supervisor: Supervisor = field(default_factory=Supervisor)
    invalid: int = 0
    """Objects that could not be understood, so far."""
    _workers: dict[str, WorkerSpec] = field(default_factory=dict)
    _services: dict[ServiceKey, Object] = field(default_factory=dict)
    _accelerators: dict[str, AcceleratorClassSpec] = field(default_factory=dict)
    _listed: set[str] = field(default_factory=set)
    """Collections whose first list has come."""
    _followers: list[Follower] = field(default_factory=list)

    @property
    def synced(self) -> bool:
        """Every list is complete and no watch is known to be broken."""
        return self.table.complete and all(follower.fresh for follower in self._followers)

    @property
    def failures(self) -> int:
        """Failed lists and watches, and objects not understood."""
        return self.invalid + sum(follower.failures for follower in self._followers)

    async def run(self) -> None:
        """Watch for ever."""
        own = await ApiServer.connect() if self.api is None else None
        api = own or self.api
        assert api is not None
        try:
            await self._follow(api)
        finally:
            if own is not None:
                await own.close()

    async def _follow(self, api: Api) -> None:
        rng = random.Random()  # noqa: S311 - jitter
        self._followers = []
        for namespace in self.namespaces or ("",):
            scope = f"/namespaces/{namespace}" if namespace else ""
            services = f"/apis/{names.API_VERSION}{scope}/{names.MODEL_SERVICE_PLURAL}"
            pods = f"/api/v1{scope}/pods"
            self._followers += [
                Follower(
                    api, services, "", self._lister(services, namespace, self._list_services), self._service_event, rng
                ),
                Follower(api, pods, POD_SELECTOR, self._lister(pods, namespace, self._list_pods), self._pod_event, rng),
            ]
        classes = f"/apis/{names.API_VERSION}/{names.ACCELERATOR_CLASS_PLURAL}"
        accelerators = Follower(api, classes, "", self._list_accelerators, self._accelerator_event, rng, needed=False)
        async with asyncio.TaskGroup() as tasks:
            for follower in (*self._followers, accelerators):
                tasks.create_task(follower.run(), name=f"follow {follower.path}")
            tasks.create_task(self._ask_for_cards(), name="model cards")

    def _lister(
        self, path: str, namespace: str, take: Callable[[str, Sequence[Object]], None]
    ) -> Callable[[Sequence[Object]], None]:
        def on_list(items: Sequence[Object]) -> None:
            take(namespace, items)
            self._listed.add(path)
            if len(self._listed) == len(self._followers):
                self.table.complete_now()

        return on_list

    # -- model services -----------------------------------------------------------------------------------------------

    def _list_services(self, namespace: str, items: Sequence[Object]) -> None:
        seen = {service_key(item) for item in items}
        for item in items:
            self._put_service(item)
        for key in tuple(self.table.services):
            if key not in seen and namespace in {"", key.namespace}:
                self._drop_service(key)

    def _drop_service(self, key: ServiceKey) -> None:
        self._services.pop(key, None)
        self.table.drop_service(key)

    def _service_event(self, kind: str, item: Object) -> None:
        if kind == "DELETED":
            self._drop_service(service_key(item))
        else:
            self._put_service(item)

    def _put_service(self, item: Object) -> None:
        """An invalid one (of an older schema, say) leaves what is known of it in use."""
        key = service_key(item)
        try:
            spec = read_service(item, self._accelerators)
        except (ValueError, KeyError, TypeError) as error:
            self.invalid += 1
            log.warning("model service cannot be understood: %s", error, extra={"service": str(key)})
            return
        self._services[key] = item
        is_new = key not in self.table.services
        self.table.put_service(spec, time.monotonic())
        if is_new:
            self._put_workers_of(key)

    def _put_workers_of(self, key: ServiceKey) -> None:
        now_s = time.monotonic()
        for spec in self._workers.values():
            if spec.service == key:
                self.table.put_worker(spec, now_s)

    # -- accelerators -------------------------------------------------------------------------------------------------

    def _list_accelerators(self, items: Sequence[Object]) -> None:
        self._accelerators.clear()
        for item in items:
            self._note_accelerator(item)
        self._read_services_again()

    def _accelerator_event(self, kind: str, item: Object) -> None:
        if kind == "DELETED":
            self._accelerators.pop(item["metadata"]["name"], None)
        else:
            self._note_accelerator(item)
        self._read_services_again()

    def _note_accelerator(self, item: Object) -> None:
        try:
            self._accelerators[item["metadata"]["name"]] = AcceleratorClassSpec.model_validate(item["spec"])
        except ValueError as error:
            self.invalid += 1
            log.warning("accelerator class cannot be understood: %s", error)

    def _read_services_again(self) -> None:
        for item in tuple(self._services.values()):
            self._put_service(item)

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _list_pods(self, namespace: str, items: Sequence[Object]) -> None:
        seen = {item["metadata"]["uid"] for item in items}
        for item in items:
            self._put_pod(item)
        for uid, spec in tuple(self._workers.items()):
            if uid not in seen and namespace in {"", spec.service.namespace}:
                self._drop_pod(uid)

    def _pod_event(self, kind: str, item: Object) -> None:
        if kind == "DELETED":
            self._drop_pod(item["metadata"]["uid"])
        else:
            self._put_pod(item)

    def _put_pod(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        try:
            spec = read_worker(item)
        except (ValueError, KeyError, TypeError) as error:
            self.invalid += 1
            log.warning("worker pod cannot be understood: %s", error, extra={"pod": uid})
            return
        if spec is None:
            self._drop_pod(uid)
            return
        known = self._workers.get(uid)
        self._workers[uid] = spec
        if known is not None and known.service != spec.service:
            self.table.drop_worker(uid, time.monotonic())
        if spec.service in self.table.services:
            self.table.put_worker(spec, time.monotonic())

    def _drop_pod(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self.table.drop_worker(uid, time.monotonic())

    # -- model cards --------------------------------------------------------------------------------------------------

    async def _ask_for_cards(self) -> None:
        """Ask ready workers what they serve until each has told it; those that do not answer wait for the next round."""
        asked: set[str] = set()
        while True:
            batch = self._next_for_cards(asked)
            attempt = self.supervisor.attempt
            await asyncio.gather(*(attempt(Background.DISCOVERY, partial(self._ask_worker, one)) for one in batch))
            await asyncio.sleep(CARDS_INTERVAL_S)

    def _next_for_cards(self, asked: set[str]) -> list[Worker]:
        """Who is asked now; `asked` holds who has been in this round."""
        wanting = [
            worker
            for worker in self.table.workers.values()
            if worker.cards is None and worker.spec.state is WorkerState.READY
        ]
        if all(worker.spec.uid in asked for worker in wanting):
            asked.clear()
        batch = [worker for worker in wanting if worker.spec.uid not in asked][:CARDS_AT_ONCE_MAX]
        asked.update(worker.spec.uid for worker in batch)
        return batch

    async def _ask_worker(self, worker: Worker) -> None:
        try:
            worker.cards = await read_cards(self.upstreams, worker.peer, timeout_s=CARDS_TIMEOUT_S)
        except WorkerFailure as failure:
            log.debug("worker does not list its models: %s", failure.message, extra={"worker": worker.spec.name})
