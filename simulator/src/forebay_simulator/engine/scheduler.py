"""Continuous batching under a virtual clock: which tokens each step computes, and how long the step takes.

The scheduler is vLLM's (version 1) in its decisions. A step has a budget of tokens. Running requests are served first,
in order of admission: a decode takes one token, a chunked prefill what is left of its prompt and of the budget. Then
waiting requests are admitted while budget, sequence slots and blocks last; a prefix found in the cache is not computed
again, except its last token, without which there would be nothing to sample from. When a running request needs a block
and none is free, the last admitted one (or the least urgent, under the priority policy) is preempted: it loses its
blocks and waits, at the front, to be computed again. Requests whose KV was fetched wait in a queue of their own that is
served first: they hold blocks, and one behind a request that lacks blocks would wait for ever. Blocks are registered in the
prefix cache when the step that fills them is scheduled, so a second request with the same prefix hits them in that step.

Nothing here reads a clock or waits. The driver calls `schedule(now)`, lets the step's `duration_s` pass, and calls
`complete(step, now)`; in between, requests may be added, aborted, or told that their remote KV arrived.

    duration = timer.step_seconds(decodes, sum of their contexts, prefill tokens, sum over chunks of end^2 - start^2)
"""

from __future__ import annotations

from forebay_simulator.engine.kv_blocks import BlockPool
from forebay_simulator.engine.request import FinishReason, Phase, Request
from forebay_simulator.engine.scheduling import (
    BlockRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvent,
    Counters,
    Held,
    SchedulerConfig,
    Step,
    StepTimer,
)
from forebay_simulator.engine.waiting import Policy, WaitingQueue, waiting_queue


class Scheduler:
    """The state of one engine. All methods return at once; times are virtual seconds of any origin."""

    def __init__(self, config: SchedulerConfig, timer: StepTimer) -> None:
        self.config = config
        self.pool = BlockPool(
            usable_blocks=config.usable_blocks,
            caching=config.prefix_caching,
            reports_removals=config.records_events,
        )
        self.waiting = waiting_queue(config.policy)
        self.arrived = waiting_queue(config.policy)
        """Requests that wait with their prompt's KV in their blocks, fetched from another engine."""
        self.running: list[Request] = []
        self.fetching: dict[str, Request] = {}
        self.held: dict[str, Held] = {}
        self.counters = Counters()
        self.events: list[CacheEvent] = []
        """Journal for KV events; the reader empties it. Stays empty unless the config asks for it."""
        self.adapter_deferred = 0
        """Waiting requests that the last step passed over because their LoRA adapter had no slot."""
        self._timer = timer

    # ---- what the driver asks

    @property
    def unfinished(self) -> int:
        """Requests in any phase but finished."""
        return self.queued + len(self.running) + len(self.fetching)

    @property
    def queued(self) -> int:
        """Requests that wait to be run."""
        return len(self.waiting) + len(self.arrived)

    @property
    def usage(self) -> float:
        """Share of KV blocks held, 0 to 1."""
        return self.pool.usage

    # ---- what the driver does

    def add(self, request: Request) -> None:
        """Queue a request. The queue has no limit."""
        assert request.phase is Phase.WAITING, "a request is added once"
        self.waiting.push(request)

    def schedule(self, now_s: float) -> Step:
        """Decide the next step. A step without `work` has nothing to wait for; its fetches still have to be started."""
        step = Step(started_s=now_s)
        budget = self._serve_running(step)
        if not step.preempted or not step.work:
            self._admit_waiting(step, budget, now_s)
        if step.work:
            self._time(step)
        return step

    def complete(self, step: Step, now_s: float) -> list[Request]:
        """Account a step that ended. Returns the requests that produced a token, finished ones included.

        A request that was aborted while the step ran produces nothing.
        """
        produced = []
        for request, tokens in step.work:
            if request.phase is not Phase.RUNNING:
                continue
            request.computed_tokens += tokens
            if request.computed_tokens < request.prompt_tokens + request.output_tokens:
                continue
            request.output_tokens += 1
            if request.first_token_s is None:
                request.first_token_s = now_s
            produced.append(request)
        finished = [request for request in produced if self._ends(request)]
        for request in finished:
            reason = FinishReason.STOP if self._stops(request) else FinishReason.LENGTH
            self._leave(request, reason, now_s)
        if finished:
            self._drop_finished()
        return produced

    def finish(self, request: Request, reason: FinishReason, now_s: float) -> None:
        """End a request for a reason the scheduler cannot see: a stop string, an abort, a failed fetch."""
        if request.finished:
            return
        queue = self._queue_of(request) if request.phase is Phase.WAITING else None
        self.fetching.pop(request.request_id, None)
        self._leave(request, reason, now_s)
        if queue is not None:
            queue.discard(request)
        else:
            self._drop_finished()

    def remote_kv_arrived(self, request: Request) -> None:
        """Let a fetching request run: its prompt is in its blocks, and its last token is computed again."""
        del self.fetching[request.request_id]
        request.fetched_tokens = request.prompt_tokens - request.computed_tokens
        self._register(request, request.prompt_tokens)
        request.computed_tokens = request.prompt_tokens - 1
        request.remote_prefill = False
        request.phase = Phase.WAITING
        self.arrived.push(request)

    def remote_kv_failed(self, request: Request) -> None:
        """Let a fetching request compute its prompt itself, as if it had just come."""
        del self.fetching[request.request_id]
        request.remote_prefill = False
        self.pool.release(request.block_ids)
        self._forget_blocks(request)
        request.phase = Phase.WAITING
        self.waiting.push_back(request)

    def renew_held(self, request_id: str, expires_s: float) -> bool:
        """Move a lease's expiry; False when there is no such lease."""
        held = self.held.get(request_id)
        if held is None:
            return False
        self.held[request_id] = Held(request=held.request, block_ids=held.block_ids, expires_s=expires_s)
        return True

    def release_held(self, request_id: str) -> bool:
        """Free held blocks; False when there is no such lease (any more)."""
        held = self.held.pop(request_id, None)
        if held is None:
            return False
        self.pool.release(held.block_ids)
        return True

    def expire_held(self, now_s: float) -> list[str]:
        """Free every lease that is over and return their request ids."""
        over = [request_id for request_id, held in self.held.items() if held.expires_s <= now_s]
        for request_id in over:
            self.release_held(request_id)
        return over

    def reset_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget the prefix cache; False while requests hold blocks, unless they may be preempted."""
        if preempt_running:
            for request in reversed(list(self.running)):
                self._preempt(request)
            self._drop_finished()
        cleared = self.pool.reset_cache()
        if cleared and self.config.records_events:
            self.events.append(CacheCleared())
        return cleared

    # ---- one step

    def _serve_running(self, step: Step) -> int:
        limit = self.config.max_batched_tokens
        budget = limit
        # Requests are served in order and a victim leaves both lists, so the next one to serve is at len(step.work).
        while len(step.work) < len(self.running) and budget > 0:
            request = self.running[len(step.work)]
            tokens = min(request.total_tokens - request.computed_tokens, budget)
            preempted = len(step.preempted)
            if self._make_room(request, tokens, step):
                step.work.append((request, tokens))
                budget -= tokens
            if len(step.preempted) > preempted:
                budget = limit - sum(tokens for _, tokens in step.work)
        return budget

    def _make_room(self, request: Request, tokens: int, step: Step) -> bool:
        """Get the request its blocks, preempting others; False when it had to give up its own."""
        while not self._grow(request, tokens):
            victim = self._victim()
            self._preempt(victim)
            self._drop_finished()
            step.preempted.append(victim)
            step.work = [(other, n) for other, n in step.work if other is not victim]
            if victim is request:
                return False
        return True

    def _admit_waiting(self, step: Step, budget: int, now_s: float) -> None:
        passed_over: list[Request] = []
        while budget > 0 and len(self.running) < self.config.max_sequences:
            queue = self.arrived if len(self.arrived) else self.waiting
            request = queue.peek()
            if request is None:
                break
            if not self._adapter_fits(request):
                passed_over.append(queue.pop())
                continue
            tokens = self._start(request, budget) if queue is self.arrived else self._admit(request, budget)
            if tokens is None:
                break
            queue.pop()
            if tokens == 0:
                request.phase = Phase.FETCHING
                self.fetching[request.request_id] = request
                step.fetches.append(request)
                continue
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now_s  # a fetch is part of the wait, as it is in vLLM's own histograms
            request.phase = Phase.RUNNING
            self.running.append(request)
            step.work.append((request, tokens))
            budget -= tokens
        for request in reversed(passed_over):
            self._queue_of(request).push_back(request)
        self.adapter_deferred = len(passed_over)

    def _queue_of(self, request: Request) -> WaitingQueue:
        """Where a waiting request waits: only fetched ones hold blocks."""
        return self.arrived if request.block_ids else self.waiting

    def _start(self, request: Request, budget: int) -> int | None:
        tokens = min(request.total_tokens - request.computed_tokens, budget)
        return tokens if self._grow(request, tokens) else None

    def _admit(self, request: Request, budget: int) -> int | None:
        """Give a request its first blocks. Returns tokens for this step, 0 for a fetch, None when it has to wait."""
        hits = self._lookup(request)
        hit_tokens = len(hits) * self.config.block_size
        total = request.total_tokens
        # The whole prompt must fit before any of it is computed (scheduler_reserve_full_isl).
        if self._blocks_for(total) - len(hits) > self.pool.free_blocks - self.pool.unheld(hits):
            return None
        fetches = request.remote_prefill and hit_tokens < request.prompt_tokens
        tokens = total - hit_tokens
        if not fetches and tokens > budget:
            if not self.config.chunked_prefill:
                return None
            tokens = budget
        self._count_lookup(request, hit_tokens)
        self.pool.hold(hits)
        request.block_ids = list(hits)
        request.registered_blocks = len(hits)
        request.computed_tokens = hit_tokens
        if request.reports_hits and hits and self.config.records_events:
            self.events.append(BlocksStored(request, 0, len(hits)))
        if fetches:
            request.block_ids += self.pool.take(self._blocks_for(total) - len(hits))
            self._journal_removals()
            self.counters.external_hits += request.prompt_tokens - hit_tokens
            return 0
        grown = self._grow(request, tokens)
        assert grown, "room for the whole prompt was checked"
        return tokens

    def _count_lookup(self, request: Request, hit_tokens: int) -> None:
        if request.lookup_counted:
            return
        request.lookup_counted = True
        request.cached_tokens = hit_tokens
        self.counters.prefix_queries += request.total_tokens
        self.counters.prefix_hits += hit_tokens
        self.counters.external_queries += request.total_tokens - hit_tokens

    def _time(self, step: Step) -> None:
        decodes = context = prefill = attention = 0
        for request, tokens in step.work:
            start = request.computed_tokens
            end = start + tokens
            if tokens == 1 and end == request.prompt_tokens + request.output_tokens:
                decodes += 1
                context += end
            else:
                prefill += tokens
                attention += end * end - start * start
        step.tokens = decodes + prefill
        step.duration_s = self._timer.step_seconds(
            decode_sequences=decodes,
            decode_context_tokens=context,
            prefill_tokens=prefill,
            prefill_attention=attention,
        )

    # ---- blocks

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.config.block_size)

    def _lookup(self, request: Request) -> list[int]:
        if not self.config.prefix_caching:
            return []
        hits: list[int] = []
        # The last token is always computed, hence one token less than there are.
        for index in range((request.total_tokens - 1) // self.config.block_size):
            block_id = self.pool.find(request.blocks.block_hash(index))
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def _grow(self, request: Request, tokens: int) -> bool:
        """Extend a request's blocks to hold `tokens` more and register those that become full."""
        end = request.computed_tokens + tokens
        block_size = self.config.block_size
        missing = -(-end // block_size) - len(request.block_ids)
        if missing > 0:
            if missing > self.pool.free_blocks:
                return False
            request.block_ids += self.pool.take(missing)
            self._journal_removals()
        if end // block_size > request.registered_blocks:
            self._register(request, end)
        return True

    def _register(self, request: Request, tokens: int) -> None:
        if not self.config.prefix_caching:
            return
        first, last = request.registered_blocks, tokens // self.config.block_size
        for index in range(first, last):
            self.pool.register(request.block_ids[index], request.blocks.block_hash(index))
        request.registered_blocks = max(first, last)
        if self.config.records_events and last > first:
            self.events.append(BlocksStored(request, first, last))

    def _journal_removals(self) -> None:
        if self.pool.removed:
            self.events += [BlockRemoved(block_hash) for block_hash in self.pool.removed]
            self.pool.removed.clear()

    def _forget_blocks(self, request: Request) -> None:
        request.block_ids = []
        request.registered_blocks = 0
        request.computed_tokens = 0

    # ---- endings

    def _stops(self, request: Request) -> bool:
        return request.natural_output_tokens is not None and request.output_tokens >= request.natural_output_tokens

    def _ends(self, request: Request) -> bool:
        return request.output_tokens >= request.output_tokens_max or self._stops(request)

    def _leave(self, request: Request, reason: FinishReason, now_s: float) -> None:
        request.phase = Phase.FINISHED
        request.finish_reason = reason
        request.finished_s = now_s
        if request.hold_after_finish and reason in (FinishReason.STOP, FinishReason.LENGTH):
            expires_s = now_s + self.config.lease_s
            self.held[request.request_id] = Held(request, tuple(request.block_ids), expires_s)
        else:
            self.pool.release(request.block_ids)
        request.block_ids = []

    def _drop_finished(self) -> None:
        self.running = [request for request in self.running if request.phase is Phase.RUNNING]

    def _victim(self) -> Request:
        if self.config.policy is Policy.PRIORITY:
            return max(self.running, key=lambda request: (request.priority, request.arrival_s))
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        self.pool.release(request.block_ids)
        self._forget_blocks(request)
        request.preemptions += 1
        self.counters.preemptions += 1
        request.phase = Phase.WAITING
        self.waiting.push_back(request)

    def _adapter_fits(self, request: Request) -> bool:
        limit = self.config.max_adapters
        if not limit or request.adapter is None:
            return True
        active = {other.adapter for other in self.running if other.adapter is not None}
        return request.adapter in active or len(active) < limit
