"""The Fits condition; the memory arithmetic is the capacity model's and tested there."""

import pytest

from forebay_api.acceleratorclass import AcceleratorClass
from forebay_api.conditions import ConditionStatus
from forebay_api.modelservice import ModelServiceSpec
from forebay_operator.fits import judge_fit
from tests.operator.examples import ACCELERATOR, model_service, pool

H100 = AcceleratorClass.model_validate(ACCELERATOR).spec
UNKNOWN = AcceleratorClass.model_validate({"spec": {"hardware": "abacus"}}).spec
MODEL_70B = {"name": "llama-70b", "source": "hf://meta-llama/Llama-3.1-70B-Instruct"}


@pytest.mark.parametrize(
    ("spec", "status", "words"),
    [
        ({}, ConditionStatus.TRUE, "pool mixed: "),
        ({"model": MODEL_70B}, ConditionStatus.FALSE, "raise parallelism.tensor to"),
        ({"model": MODEL_70B, "pools": [pool("mixed", parallelism={"tensor": 4})]}, ConditionStatus.TRUE, "KV cache"),
        ({"model": {"name": "own", "source": "s3://bucket/own"}}, ConditionStatus.UNKNOWN, "not known"),
    ],
)
def test_the_answer_of_the_capacity_model_becomes_the_condition(spec, status, words):
    condition = judge_fit(ModelServiceSpec.model_validate(model_service(**spec)["spec"]), {"h100-sxm": H100})
    assert condition.status is status
    assert words in condition.message


def test_one_pool_that_does_not_fit_decides():
    pools = [pool("small", role="Prefill"), pool("large", role="Decode", parallelism={"tensor": 4})]
    spec = ModelServiceSpec.model_validate(model_service(model=MODEL_70B, pools=pools)["spec"])
    condition = judge_fit(spec, {"h100-sxm": H100})
    assert condition.reason == "DoesNotFit"
    assert "pool small" in condition.message
    assert "large" not in condition.message


def test_unknown_hardware_does_not_keep_a_service_back():
    spec = ModelServiceSpec.model_validate(model_service()["spec"])
    assert judge_fit(spec, {"h100-sxm": UNKNOWN}).status is ConditionStatus.UNKNOWN
