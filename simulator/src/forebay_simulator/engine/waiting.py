"""The waiting queue: first come first served, or by priority, with removal from the middle for free.

A removed request stays in the structure and is skipped when it reaches the front; the count is kept apart. Requests put
back by a preemption go to the front (first come first served) or to where their key says (priority).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

from forebay_simulator.engine.request import Phase, Request


class Policy(Enum):
    """In which order waiting requests are admitted; the values are vLLM's."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class WaitingQueue(Protocol):
    """What the scheduler needs of a queue."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """Walk over the waiting requests, in any order."""
        ...

    def push(self, request: Request) -> None:
        """Add a new request."""
        ...

    def push_back(self, request: Request) -> None:
        """Return a request that was admitted before: it goes ahead of its equals."""
        ...

    def peek(self) -> Request | None:
        """Return the next request, which stays in the queue."""
        ...

    def pop(self) -> Request:
        """Take the next request."""
        ...

    def discard(self, request: Request) -> None:
        """Count out a request whose phase is WAITING no more."""
        ...


class FirstComeQueue:
    """A double-ended queue."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        return (request for request in self._requests if request.phase is Phase.WAITING)

    def push(self, request: Request) -> None:
        """Add at the end."""
        self._requests.append(request)
        self._count += 1

    def push_back(self, request: Request) -> None:
        """Add at the front."""
        self._requests.appendleft(request)
        self._count += 1

    def peek(self) -> Request | None:
        """Return the first that still waits."""
        requests = self._requests
        while requests and requests[0].phase is not Phase.WAITING:
            requests.popleft()
        return requests[0] if requests else None

    def pop(self) -> Request:
        """Take the first that still waits."""
        request = self.peek()
        assert request is not None, "pop from an empty queue"
        self._requests.popleft()
        self._count -= 1
        return request

    def discard(self, request: Request) -> None:
        """Count out; the entry is dropped when it reaches the front."""
        assert request.phase is not Phase.WAITING, "a waiting request would be found again"
        self._count -= 1


class PriorityQueue:
    """A heap by (priority, arrival, order of entry)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Request]] = []
        self._entries = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in self._heap if entry[3].phase is Phase.WAITING)

    def push(self, request: Request) -> None:
        """Add by key."""
        self._entries += 1
        heapq.heappush(self._heap, (request.priority, request.arrival_s, self._entries, request))
        self._count += 1

    def push_back(self, request: Request) -> None:
        """Add by key: an earlier arrival is ahead of its equals by itself."""
        self.push(request)

    def peek(self) -> Request | None:
        """Return the smallest key that still waits."""
        while self._heap and self._heap[0][3].phase is not Phase.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def pop(self) -> Request:
        """Take the smallest key that still waits."""
        request = self.peek()
        assert request is not None, "pop from an empty queue"
        heapq.heappop(self._heap)
        self._count -= 1
        return request

    def discard(self, request: Request) -> None:
        """Count out; the entry is dropped when it reaches the top."""
        assert request.phase is not Phase.WAITING, "a waiting request would be found again"
        self._count -= 1


def waiting_queue(policy: Policy) -> WaitingQueue:
    """Build the queue of a policy."""
    return FirstComeQueue() if policy is Policy.FCFS else PriorityQueue()
