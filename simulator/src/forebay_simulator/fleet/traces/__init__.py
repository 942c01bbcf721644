"""Requests to replay: public traces, generators fitted to published statistics, and what scales them."""
