"""Routers side by side, on one core, before the same mock engines: `python -m tests.bench.routers`, or `make bench-router`.

CPU seconds are the measure: they hardly move with what else the machine does, and they are what a router costs. Each round starts
every router afresh, one after the other, and runs the workloads on it; ratios are taken inside a round. `workloads` says what is
asked, `engines` what answers, `load` who asks, `peers` which routers there are and how they are installed, `rounds` runs it.
"""
