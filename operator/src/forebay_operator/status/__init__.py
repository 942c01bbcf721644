"""Status, computed as a whole from what was observed: pure, no clock of its own.

- `worker_pool`: Deployment and workers -> a WorkerPool's status
- `model_service`: spec and WorkerPools -> a ModelService's status

`Ready` means that everything the spec wants serves and nothing of an older spec is left. Growing does not take it away: a
service whose spec is rolled out stays ready while more workers start. `Progressing` follows the Deployment's convention:
True while something moves and also when all is done, False when it is stuck; so in a healthy, settled service every
condition is True.
"""
