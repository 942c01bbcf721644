"""Simulated engine, node and fleet: everything but the GPU."""
