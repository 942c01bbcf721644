"""Reconciliation: one level-triggered path a kind. Read everything, build what should be, apply it, prune, report.

No step looks at what changed, so a missed event, a restart in the middle or two events at once lead to the same end. Every
step may be repeated. Failures raise; the queue's back-off brings the object here again.

- `loop`: keys from the queue to the reconciler of their kind
- `model_service`, `worker_pool`: the two paths
- `applying`: apply one object, adopt what is ours, count drift
- `draining`: carry out a drain plan
- `reporting`: write a status when it changed, and the Events that follow from it
"""
