"""The state of a pod that an earlier agent ran, read back from its API object: pure.

The agent adopts no process: those of its predecessor have ended with it. As after a node's reboot everything starts again,
init containers included, and counts as a restart.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay_simulator.node.lifecycle import ContainerState, Ended, Phase, PodState
from forebay_simulator.node.pods import Container, ContainerKind, Pod, RestartPolicy


def recovered_state(pod: Pod, fresh: PodState, *, now_s: float) -> PodState:
    """`fresh` with what the API object remembers: counts, last ends, and containers that had ended for good."""
    status = pod.raw.get("status") or {}
    shown = {
        item["name"]: item
        for listed in ("initContainerStatuses", "containerStatuses")
        for item in status.get(listed) or []
    }
    state = fresh
    for item in pod.containers:
        if item.name in shown:
            state = state.with_container(_recovered(item, state.containers[item.name], shown[item.name], now_s=now_s))
    return state


def _recovered(item: Container, fresh: ContainerState, shown: Mapping[str, Any], *, now_s: float) -> ContainerState:
    current = shown.get("state") or {}
    former = (shown.get("lastState") or {}).get("terminated")
    last = _read_terminated(former) if former else None
    recovered = replace(fresh, restarts=shown.get("restartCount", 0), last=last)
    if terminated := current.get("terminated"):
        ended = _read_terminated(terminated)
    elif running := current.get("running"):
        ended = Ended(
            exit_code=137,
            reason="ContainerStatusUnknown",
            message="The container ended with the node agent that ran it.",
            started_at_s=_read_timestamp(running.get("startedAt"), now_s),
            finished_at_s=now_s,
        )
    else:
        return recovered
    ended_for_good = item.kind is ContainerKind.MAIN and not item.restart.wants_restart(ended.exit_code)
    failed_for_good = item.restart is RestartPolicy.NEVER and ended.exit_code != 0
    if ended_for_good or failed_for_good:
        return replace(recovered, phase=Phase.ENDED, ended=ended)
    return replace(recovered, restarts=recovered.restarts + 1, last=ended)


def _read_terminated(shown: Mapping[str, Any]) -> Ended:
    finished_at_s = _read_timestamp(shown.get("finishedAt"), 0.0)
    return Ended(
        exit_code=shown.get("exitCode", 0),
        signal=shown.get("signal"),
        reason=shown.get("reason", ""),
        message=shown.get("message", ""),
        started_at_s=_read_timestamp(shown.get("startedAt"), finished_at_s),
        finished_at_s=finished_at_s,
    )


def _read_timestamp(text: str | None, otherwise_s: float) -> float:
    return dt.datetime.fromisoformat(text).timestamp() if text else otherwise_s
