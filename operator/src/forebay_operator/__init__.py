"""Reconciles ModelService and WorkerPool resources into running workers."""
