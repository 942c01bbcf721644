"""`python -m tests.bench.routers`: install the peers, run the rounds, write build/bench/router.json and router.md."""

import argparse
import platform
from pathlib import Path

import orjson

from tests.bench.routers.peers import ROUTERS
from tests.bench.routers.rounds import Row, engines, one_round, table
from tests.bench.routers.workloads import WORKLOADS

RESULTS = Path(__file__).parents[3] / "build" / "bench" / "router.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routers", default=",".join(one.name for one in ROUTERS), help="names, comma-separated")
    parser.add_argument("--workloads", default=",".join(one.name for one in WORKLOADS), help="names, comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    routers = [one for one in ROUTERS if one.name in given.routers.split(",") and one.install()]
    workloads = [one for one in WORKLOADS if one.name in given.workloads.split(",")]
    rows: list[Row] = []
    with engines() as bench:
        for number in range(given.rounds):
            for row in one_round(bench, number, routers, workloads):
                rows.append(row)
                cpu = row["cpu_ms_per_request"] or 0.0
                print(
                    f"round {number + 1} {row['router']:10} {row['workload']:9} {row['requests_per_s']:8.0f}/s "
                    f"{cpu:7.3f} CPU ms/request, first p50 {row['first_ms'].get('p50', 0):.2f} ms, "
                    f"others {row['others_cores']:.2f} cores",
                    flush=True,
                )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(orjson.dumps({"machine": platform.platform(), "rows": rows}, option=orjson.OPT_INDENT_2))
    text = "\n\n".join(table(rows, workload) for workload in workloads) + "\n"
    RESULTS.with_suffix(".md").write_text(text)
    print(f"\n{text}\nlogs in {bench.folder}, rows in {RESULTS}")


if __name__ == "__main__":
    main()
