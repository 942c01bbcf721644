"""Dynamo's planner and Forebay's autoscaler on the same requests: `python -m tests.bench.dynamo`."""
