"""A model service from `kubectl apply` to streamed tokens, and back to nothing."""

import openai
import pytest

from forebay_cli.system import System
from tests.e2e.conftest import Service
from tests.support.eventually import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

PREFILL_DECODE = {
    "pools": [
        {"name": "prefill", "role": "Prefill", "accelerator": "h100-sxm", "replicas": {"min": 1, "max": 2}},
        {"name": "decode", "role": "Decode", "accelerator": "h100-sxm", "replicas": {"min": 1, "max": 2}},
    ]
}


def client_of(system: System) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{system.router_url()}/v1", api_key="unused", max_retries=0, timeout=30)


def test_the_official_openai_client_streams_a_chat(system, serve):
    service: Service = serve()
    with client_of(system) as client:
        assert service.model in [one.id for one in client.models.list().data]
        stream = client.chat.completions.create(
            model=service.model,
            messages=[{"role": "user", "content": "What is a forebay?"}],
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 24


def test_errors_reach_the_official_client_as_its_own_exceptions(system, serve):
    service: Service = serve()
    with client_of(system) as client:
        with pytest.raises(openai.NotFoundError, match="nosuch"):
            client.chat.completions.create(model="nosuch", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.completions.create(model=service.model, prompt=[7] * 20_000)


def counter(system: System, pod: str, namespace: str, name: str) -> float:
    """The sum of a counter's series on a worker's own /metrics."""
    import httpx

    address = system.get("pod", pod, namespace=namespace)["status"]["podIP"]
    text = httpx.get(f"http://{address}:8000/metrics", timeout=5).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def test_prefill_and_decode_workers_share_each_request(system, serve, load, namespace):
    """Seen in the workers' own counters: prompts are computed on prefill, fetched by decode, and answered there.

    A decode worker computes a prompt itself where that is predicted to take less, so not every request is split.
    """
    service: Service = serve(**PREFILL_DECODE)
    with load(service, rate_rps=5, output_tokens=100, prompt_words=1500) as run:
        run.wait_for(30)
    assert run.report.failed == 0, run.report.errors()
    found = system.get("pods", "-l", f"forebay.dev/model-service={service.name}", namespace=namespace)["items"]
    pods = {one["metadata"]["labels"]["forebay.dev/role"]: one["metadata"]["name"] for one in found}
    sent = len(run.report.records)
    prefilled = counter(system, pods["Prefill"], namespace, "vllm:generation_tokens_total")  # one token a request
    from_prefill = 'vllm:prompt_tokens_by_source_total{engine="0",model_name="%s",source="external_kv_transfer"}'
    assert 0 < prefilled <= sent
    assert counter(system, pods["Decode"], namespace, "vllm:generation_tokens_total") >= sent * 100
    assert counter(system, pods["Decode"], namespace, from_prefill % service.model) > prefilled * 1000


def test_deleting_the_service_removes_every_child(system, serve, namespace):
    service: Service = serve()
    system.cluster.kubectl("delete", "modelservice", service.name, "-n", namespace, "--wait=false")
    eventually(
        lambda: system.get("msvc,wp,deploy,rs,pods,services,pdb", namespace=namespace)["items"],
        lambda items: items == [],
        within_s=60,
        what="every child of the deleted ModelService is gone",
    )


def test_get_shows_a_person_what_is_going_on(system, serve, namespace):
    service: Service = serve()
    shown = system.cluster.kubectl("get", "msvc,wp", "-n", namespace)
    assert "ATTAINMENT" in shown
    assert f"modelservice.forebay.dev/{service.name}" in shown
    assert "1/1" in shown
    described = system.cluster.kubectl("describe", "msvc", service.name, "-n", namespace)
    assert "Events:" in described
    assert "Ready" in described


def test_a_service_that_cannot_be_scheduled_says_why_at_the_top(system, serve, namespace):
    service: Service = serve(
        wait=False,
        pools=[
            {"name": "huge", "accelerator": "h100-sxm", "parallelism": {"tensor": 16}, "replicas": {"min": 1, "max": 1}}
        ],
    )

    def ready() -> dict[str, str]:
        conditions = system.get("msvc", service.name, namespace=namespace).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "Ready"), {})

    seen = eventually(
        ready,
        lambda c: c.get("status") == "False" and "nvidia.com/gpu" in c.get("message", ""),
        within_s=30,
        what="Ready is False with the scheduler's words",
    )
    assert seen["observedGeneration"] == 1


def test_a_bad_image_says_why_at_the_top(system, serve, namespace):
    service: Service = serve(wait=False, engine={"image": "nosuch/engine:v1"})
    eventually(
        lambda: system.cluster.kubectl("get", "msvc", service.name, "-n", namespace, "-o", "wide"),
        lambda shown: "ImagePull" in shown or "ErrImagePull" in shown,
        within_s=30,
        what="the image pull error is in the table",
    )
