"""For each rule of the resources one value that it refuses and one that it lets through, keyed by the rule's message.

A value stands at the place of the rule; a mapping is merged into what stands there (None removes a key). The same examples
are put to the API server and to the models, at every place that carries the rule.
"""

from dataclasses import dataclass
from typing import Any

from tests.api.manifests import SCHEDULE, pool


@dataclass(frozen=True, slots=True)
class Example:
    """What a rule says no and yes to."""

    bad: Any
    good: Any


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}}


def minimum(tensor: int, replicas: int) -> dict[str, Any]:
    """A pool that needs so many accelerators at least."""
    return {
        **pool("mixed", "Mixed"),
        "parallelism": {"tensor": tensor},
        "replicas": {"min": replicas, "max": replicas},
    }


SECRET = {"name": "tokens", "key": "hf"}
EXAMPLES = {
    "metadata.name must be at most 40 characters": Example(named("a.b"), named("a" * 40)),
    "pools must have Prefill and Decode together": Example(
        {"pools": [pool("prefill", "Prefill")]}, {"pools": [pool("p", "Prefill"), pool("d", "Decode")]}
    ),
    "pools must be all Mixed, or Prefill and Decode": Example(
        {"pools": [pool("p", "Prefill"), pool("d", "Decode"), pool("m", "Mixed")]},
        {"pools": [pool("m", "Mixed"), pool("n", "Mixed")]},
    ),
    "autoscaling.budget.gpus is below": Example(
        {"pools": [minimum(8, 2)], "autoscaling": {"budget": {"gpus": 15}}},
        {"pools": [minimum(8, 2)], "autoscaling": {"budget": {"gpus": 16}}},
    ),
    "engine.loraAdapters must not use the name in model.name": Example(
        {"engine": {"loraAdapters": [{"name": "llama-3.1-8b", "source": "hf://example/sql"}]}},
        {"engine": {"loraAdapters": [{"name": "llama-3.1-8b-sql", "source": "hf://example/sql"}]}},
    ),
    "routing.firstTokenTimeout must not be below objective.ttft": Example(
        {"objective": {"ttft": "30.001s"}}, {"objective": {"ttft": "30s"}}
    ),
    "routing.requestTimeout must not be below routing.firstTokenTimeout": Example(
        {"requestTimeout": "29s999ms"}, {"requestTimeout": "0.5m"}
    ),
    "must be letters, digits and . _ / : -": Example("llama 3.1", "meta-llama/Llama-3.1-8B:latest"),
    "must say where the weights are": Example("meta-llama/Llama-3.1-8B-Instruct", "s3://models/llama"),
    "must be the name of a Kubernetes object": Example("Hugging_Face", "hugging-face.v2"),
    "must be an absolute path without spaces": Example("models", "/models"),
    "must not be a flag that Forebay sets": Example("--tensor_parallel_size=4", "--max-num-batched-tokens=8192"),
    "an engine.env item must not have both value and valueFrom": Example(
        {"value": "a", "valueFrom": {"secretKeyRef": SECRET}}, {"value": None, "valueFrom": {"secretKeyRef": SECRET}}
    ),
    "must be letters, digits and '_'": Example("HF-TOKEN", "HF_TOKEN"),
    "must not be a variable that Forebay sets itself": Example("VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_USE_V1"),
    "valueFrom must have exactly one of": Example(
        {"secretKeyRef": None, "configMapKeyRef": None}, {"secretKeyRef": None, "configMapKeyRef": SECRET}
    ),
    "must be letters, digits, '-', '_' and '.'": Example("hf token", "hf.token"),
    "must be a duration": Example("5 minutes", "29.5s500ms"),
    "must be longer than zero": Example("0ms", "0.5m"),
    "must be a share above 0": Example("99%", "0.999"),
    "must be lower-case letters and digits": Example("prefill-2", "prefill2"),
    "replicas.min must not be above replicas.max": Example({"min": 8, "max": 2}, {"min": 0, "max": 1}),
    "replicas.spare must not be above replicas.max": Example({"spare": 5}, {"spare": 4}),
    "replicas.schedules must not have a min above": Example(
        {"schedules": [{**SCHEDULE, "min": 5}]}, {"schedules": [{**SCHEDULE, "min": 4}]}
    ),
    "a schedule's from and to must differ": Example({"from": "08:00", "to": "08:00"}, {"from": "22:00", "to": "06:00"}),
    "must be lower-case letters, digits and dashes": Example("Office Hours", "2-office-hours"),
    "must be a time of day": Example("8:00", "24:00"),
    "must be the time of day of its start": Example("24:00", "23:59"),
    "must be a name of the time zone database": Example("+02:00", "Etc/GMT-2"),
    "must not be Local": Example("Local", "Europe/Berlin"),
    "must be a time zone that exists": Example("Mars/Base", "America/Argentina/Buenos_Aires"),
    "must be a quantity": Example("16 GB", "1.5Gi"),
    "must be above zero": Example("0", "500m"),
    "keys must be label keys": Example({"gpu product": "a"}, {"example.com/gpu.product": "a"}),
    "values must be label values": Example({"example.com/rack": "a rack"}, {"example.com/rack": ""}),
    "rollout.maxUnavailable and rollout.maxSurge": Example(
        {"maxUnavailable": 0, "maxSurge": 0}, {"maxUnavailable": 1, "maxSurge": 0}
    ),
    "must be a name that the capacity model knows": Example("H100", "h100-sxm"),
    "must be the name of an extended resource": Example("gpu", "amd.com/gpu"),
    "a toleration with operator Equal must have a key": Example({"key": None}, {"key": "gpu"}),
    "a toleration with operator Exists must not have a value": Example(
        {"operator": "Exists", "value": "true"}, {"operator": "Exists", "value": None}
    ),
    "must be a number with at most four decimals": Example("$2.50", "2"),
}
"""Keys are the beginnings of the messages."""

CHANGES = {
    "a pool's role cannot change": Example("Decode", "Prefill"),
    "modelService cannot change": Example("other", "full"),
}
"""Rules that compare with the stored object: what the stored value may not and may become."""


def example_of(message: str, table: dict[str, Example]) -> Example | None:
    """The example of the rule with a message."""
    found = [example for start, example in table.items() if message.startswith(start)]
    assert len(found) <= 1, message
    return found[0] if found else None
