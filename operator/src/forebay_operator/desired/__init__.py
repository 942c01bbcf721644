"""Desired state: pure functions from specs to manifests. No I/O, clock or randomness; equal input gives equal output.

- `worker_pool`: a ModelService's pool -> the WorkerPool
- `deployment`, `service`, `disruption_budget`: a WorkerPool -> what it owns
- `vllm`: the engine's command line and environment; `volumes`: where its weights are
- `revision`: what makes two workers' KV caches interchangeable
- `ownership`: labels and owner references that every child carries
"""
