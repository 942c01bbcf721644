"""Runs one replay of Dynamo's own simulator, in Dynamo's own environment: a job from stdin, its figures to stdout.

Not imported by anything of ours: it runs under another interpreter, which has `dynamo` and nothing of Forebay's.
"""

import json
import sys
import time
from typing import Any

from dynamo.replay import run_trace_replay

NAMES = (
    "num_requests",
    "completed_requests",
    "goodput_completed_requests",
    "gpu_hours",
    "median_ttft_ms",
    "p99_ttft_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
)


def engine(role: str, startup_s: float) -> dict[str, Any]:
    """The mocker's defaults but for its limits, which are the ones that Forebay's timer was fitted with."""
    return {
        "engine": {"worker_type": role, "block_size": 64, "num_gpu_blocks": 16384, "max_model_len": 16384},
        "startup_time": startup_s,
    }


def main() -> None:
    """Run the job."""
    job = json.load(sys.stdin)
    more = {"planner_config": json.dumps(job["planner"])} if job["planner"] else {}
    began_s = time.process_time()
    report = run_trace_replay(
        job["trace"],
        router_mode="kv_router",
        prefill_engine_args=engine("prefill", job["startup_s"]),
        decode_engine_args=engine("decode", job["startup_s"]),
        num_prefill_workers=job["prefill"],
        num_decode_workers=job["decode"],
        trace_block_size=512,
        sla_ttft_ms=job["ttft_ms"],
        sla_itl_ms=job["tpot_ms"],
        **more,
    )
    figures = getattr(report, "summary", None) or report.metrics
    found = {name: figures[name] for name in NAMES if name in figures}
    print("\n" + json.dumps(found | {"cpu_s": time.process_time() - began_s}))


if __name__ == "__main__":
    main()
