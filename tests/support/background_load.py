"""A load that runs beside a test, in a thread with an event loop of its own."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from forebay_api.objective import Objective
from forebay_cli.load import LoadGenerator, LoadReport, RequestRecord, Stage, Workload


class BackgroundLoad:
    """Sends a workload at a steady rate until stopped; every request is counted good, bad or abandoned."""

    def __init__(self, url: str, workload: Workload, *, objective: Objective, rate_rps: float, seed: int = 0) -> None:
        self.generator = LoadGenerator(url, workload, objective, seed=seed)
        self._rate_rps = rate_rps
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    @property
    def report(self) -> LoadReport:
        """What has ended so far."""
        return self.generator.report

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, within_s: float = 60.0) -> LoadReport:
        """End the arrivals and wait for every answer."""
        self._stop.set()
        self._thread.join(within_s)
        assert not self._thread.is_alive(), (
            f"{self.generator.in_flight} requests hang {within_s:g} s after the last arrival"
        )
        if self._failure is not None:
            raise self._failure
        return self.report

    def ended_since(self, number: int) -> list[RequestRecord]:
        """The records after the first `number`."""
        return self.report.records[number:]

    def wait_for(self, requests: int, *, within_s: float = 30.0) -> None:
        """Wait until so many more requests have ended."""
        wanted = len(self.report.records) + requests
        deadline = time.monotonic() + within_s
        while len(self.report.records) < wanted:
            assert time.monotonic() < deadline, f"{len(self.report.records)} of {wanted} answers after {within_s:g} s"
            time.sleep(0.1)

    def _run(self) -> None:
        try:
            asyncio.run(self._send())
        except BaseException as error:  # noqa: BLE001  # handed to the test's thread by stop()
            self._failure = error

    async def _send(self) -> None:
        async with self.generator.sending() as send:
            while not self._stop.is_set():
                await send([Stage(rate_rps=self._rate_rps, duration_s=0.5)])


@contextmanager
def loading(url: str, workload: Workload, *, objective: Objective, rate_rps: float) -> Iterator[BackgroundLoad]:
    """A load for the length of a block."""
    load = BackgroundLoad(url, workload, objective=objective, rate_rps=rate_rps)
    load.start()
    try:
        yield load
    finally:
        load.stop()
