"""Writes what the engine does into its metrics, with the handles of hot metrics resolved once."""

from __future__ import annotations

import time
from itertools import chain

from forebay_simulator.engine.metrics import Metrics
from forebay_simulator.engine.request import Request
from forebay_simulator.engine.scheduler import Scheduler
from forebay_simulator.engine.scheduling import Step


class Recorder:
    """The metrics side of one engine."""

    def __init__(self, metrics: Metrics, *, connector: bool) -> None:
        self.metrics = metrics
        self._connector = connector
        self._consumer = any(family.name == "vllm:num_requests_kv_fetch_by_stage" for family in metrics.families)
        histogram = metrics.histogram
        self._step_tokens = histogram("vllm:iteration_tokens_total")
        self._first_token = histogram("vllm:time_to_first_token_seconds")
        self._between_tokens = histogram("vllm:inter_token_latency_seconds")
        metrics.set("vllm:engine_sleep_state", 1, "awake")
        metrics.set("vllm:cache_config_info", 1)

    def gauges(self, scheduler: Scheduler) -> None:
        """Set the gauges to the scheduler's state."""
        metrics = self.metrics
        fetching = len(scheduler.fetching)
        deferred = fetching + scheduler.adapter_deferred
        waiting = scheduler.queued + fetching
        metrics.set("vllm:num_requests_running", len(scheduler.running))
        metrics.set("vllm:num_requests_waiting", waiting)
        metrics.set("vllm:num_requests_waiting_by_reason", max(0, waiting - deferred), "capacity")
        metrics.set("vllm:num_requests_waiting_by_reason", min(waiting, deferred), "deferred")
        metrics.set("vllm:kv_cache_usage_perc", scheduler.usage)
        if self._consumer:
            metrics.set("vllm:num_requests_kv_fetch_by_stage", fetching, "in_progress")
        self._scheduler_counters(scheduler)
        if metrics.adapters_max is not None:
            self._adapters(scheduler)

    def step(self, step: Step) -> None:
        """Count one ended step."""
        self._step_tokens.observe(step.tokens)

    def token(self, request: Request, now_s: float) -> None:
        """Count one produced token."""
        self.metrics.add("vllm:generation_tokens_total")
        if request.output_tokens == 1:
            self._first_token.observe(now_s - request.arrival_s)
            self._prompt(request)
        else:
            self._between_tokens.observe(now_s - (request.last_token_s or now_s))
        request.last_token_s = now_s

    def finished(self, request: Request) -> None:
        """Count one ended request under its reason."""
        reason = request.finish_reason
        assert reason is not None, "only an ended request is counted"
        metrics = self.metrics
        metrics.add("vllm:request_success_total", 1, reason.value)
        observe = self._observe
        observe("request_prompt_tokens", request.prompt_tokens)
        observe("request_generation_tokens", request.output_tokens)
        observe("request_max_num_generation_tokens", request.output_tokens)
        observe("request_params_n", 1)
        observe("request_params_max_tokens", request.output_tokens_max)
        observe("request_num_preemptions", request.preemptions)
        computed = max(0, request.prompt_tokens - request.cached_tokens - request.fetched_tokens)
        observe("request_prefill_kv_computed_tokens", computed)
        ended = request.finished_s if request.finished_s is not None else request.arrival_s
        observe("e2e_request_latency_seconds", ended - request.arrival_s)
        if request.first_scheduled_s is None or request.first_token_s is None or request.last_token_s is None:
            return
        observe("request_queue_time_seconds", request.first_scheduled_s - request.arrival_s)
        observe("request_prefill_time_seconds", request.first_token_s - request.first_scheduled_s)
        observe("request_inference_time_seconds", request.last_token_s - request.first_scheduled_s)
        decode_s = request.last_token_s - request.first_token_s
        observe("request_decode_time_seconds", decode_s)
        per_token_s = decode_s / (request.output_tokens - 1) if request.output_tokens > 1 else 0.0
        observe("request_time_per_output_token_seconds", per_token_s)

    def rejected(self, reason: str) -> None:
        """Count a request that a queue limit refused."""
        self.metrics.add("vllm:admission_rejections_total", 1, reason)

    def leases_expired(self, count: int) -> None:
        """Count leases that ended without a fetch."""
        self.metrics.add("vllm:nixl_num_kv_expired_reqs_total", count)

    def transferred(self, *, seconds: float, size_bytes: float, descriptors: int) -> None:
        """Count one fetch of a prompt's KV."""
        histogram = self.metrics.histogram
        histogram("vllm:nixl_xfer_time_seconds").observe(seconds)
        histogram("vllm:nixl_post_time_seconds").observe(min(seconds, 0.0003))
        histogram("vllm:nixl_bytes_transferred").observe(size_bytes)
        histogram("vllm:nixl_num_descriptors").observe(descriptors)

    def _adapters(self, scheduler: Scheduler) -> None:
        """Stamp the set of adapters in use: the sample with the latest time is the current one."""
        running = dict.fromkeys(request.adapter for request in scheduler.running if request.adapter)
        queued = chain(scheduler.arrived, scheduler.waiting)
        waiting = dict.fromkeys(request.adapter for request in queued if request.adapter)
        self.metrics.adapters[",".join(running), ",".join(waiting)] = time.time()

    def _observe(self, name: str, value: float) -> None:
        self.metrics.histogram(f"vllm:{name}").observe(value)

    def _prompt(self, request: Request) -> None:
        metrics = self.metrics
        local, fetched = request.cached_tokens, request.fetched_tokens
        metrics.add("vllm:prompt_tokens_total", request.prompt_tokens)
        metrics.add("vllm:prompt_tokens_by_source_total", request.prompt_tokens - local - fetched, "local_compute")
        metrics.add("vllm:prompt_tokens_by_source_total", local, "local_cache_hit")
        metrics.add("vllm:prompt_tokens_by_source_total", fetched, "external_kv_transfer")
        metrics.add("vllm:prompt_tokens_cached_total", local + fetched)

    def _scheduler_counters(self, scheduler: Scheduler) -> None:
        counters = scheduler.counters
        self._advance("vllm:prefix_cache_queries_total", counters.prefix_queries)
        self._advance("vllm:prefix_cache_hits_total", counters.prefix_hits)
        self._advance("vllm:num_preemptions_total", counters.preemptions)
        self._advance("vllm:prompt_tokens_cached_by_source_total", counters.prefix_hits, "device")
        if self._connector:
            self._advance("vllm:external_prefix_cache_queries_total", counters.external_queries)
            self._advance("vllm:external_prefix_cache_hits_total", counters.external_hits)
            self._advance("vllm:prompt_tokens_cached_by_source_total", counters.external_hits, "p2p")

    def _advance(self, name: str, total: int, value: str = "") -> None:
        # The scheduler's sums only grow, so a counter may simply take their value.
        self.metrics.set(name, total, value)
