"""Resizes worker pools so that requests meet their objective at the fewest GPU-hours."""
