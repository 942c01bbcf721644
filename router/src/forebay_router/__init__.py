"""Sends each request to the worker that will answer it in time."""
