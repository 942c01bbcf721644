import pytest

from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.modelservice import ModelServiceSpec
from forebay_capacity.accelerators import GIB, accelerator_of
from forebay_capacity.errors import ImpossibleError
from forebay_capacity.fits import Fit, Verdict, check_worker, engine_sequences, engine_tokens, fits, worker_of_pool
from forebay_capacity.shapes import shape_of
from forebay_capacity.worker import Parallelism, Worker

H100 = accelerator_of("h100-sxm")


def ask(model: str, *, accelerator: dict | None = None, pool: dict | None = None, **engine) -> Fit:
    """The answer for a service of one pool."""
    spec = ModelServiceSpec.model_validate(
        {
            "model": {"name": model.rsplit("/", 1)[-1].lower(), "source": model},
            "engine": engine,
            "pools": [{"name": "mixed", "accelerator": "gpu", **(pool or {})}],
        }
    )
    described = AcceleratorClassSpec.model_validate({"hardware": "h100-sxm", **(accelerator or {})})
    return fits(spec, spec.pools[0], described)


def test_8b_fits_with_its_whole_context():
    fit = ask("hf://meta-llama/Llama-3.1-8B-Instruct")
    assert fit.verdict is Verdict.FITS
    assert fit.kv_tokens == 457_984  # at the engine's default of 0.92


def test_70b_on_one_gpu_is_told_what_would_hold_it():
    fit = ask("hf://meta-llama/Llama-3.1-70B-Instruct", maxModelLen=16_384)
    assert fit.verdict is Verdict.TOO_SMALL
    assert "weights of 131.4 GiB" in fit.message
    assert "raise parallelism.tensor to 2" in fit.message


def test_70b_on_two_gpus_holds_no_request_of_its_whole_context():
    fit = ask("hf://meta-llama/Llama-3.1-70B-Instruct", pool={"parallelism": {"tensor": 2}})
    assert fit.verdict is Verdict.TOO_SMALL
    assert "not for maxModelLen 131,072" in fit.message
    assert "lower engine.maxModelLen to 33,776" in fit.message
    assert "raise parallelism.tensor to 4" in fit.message


def test_following_the_message_makes_it_fit():
    source = "hf://meta-llama/Llama-3.1-70B-Instruct"
    assert ask(source, pool={"parallelism": {"tensor": 2}}, maxModelLen=33_776).verdict is Verdict.FITS
    assert ask(source, pool={"parallelism": {"tensor": 4}}).verdict is Verdict.FITS
    assert ask(source, pool={"parallelism": {"tensor": 2}}, maxModelLen=33_777).verdict is Verdict.TOO_SMALL


def test_quantised_weights_and_cache_are_counted():
    source, pool = "hf://meta-llama/Llama-3.1-70B-Instruct", {"parallelism": {"tensor": 2}}
    fit = ask(source, pool=pool, quantization="fp8", kvCacheDtype="fp8")
    assert fit.verdict is Verdict.FITS
    assert fit.kv_tokens > 10 * ask(source, pool=pool, maxModelLen=1024).kv_tokens


@pytest.mark.parametrize("arguments", [["--gpu-memory-utilization", "0.5"], ["--gpu_memory_utilization=0.5"]])
def test_the_engines_share_of_memory_is_read_from_its_flags(arguments: list[str]):
    fit = ask("hf://meta-llama/Llama-3.1-8B-Instruct", args=arguments)
    assert fit.kv_tokens == pytest.approx((0.5 * 79.2 * GIB - 16.06e9 - 2 * GIB) / 131_072, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "sequences"),
    [
        (["--max-num-seqs", "512"], 512),
        (["--enforce-eager", "--max_num_seqs=32"], 32),
        (["--max-num-seqs", "many"], None),
        (["--max-num-seqs", "0"], None),
        (["--max-num-seqs"], None),
        (["--enforce-eager"], None),
    ],
)
def test_the_engines_most_sequences_are_read_from_its_flags(arguments: list[str], sequences: int | None):
    assert engine_sequences(arguments) == sequences


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        (["--max-num-batched-tokens", "512"], 512),
        (["--max_num_batched_tokens=512"], 512),
        (["--max-num-seqs", "4"], None),
    ],
)
def test_the_budget_of_a_step_is_read_from_the_engines_flags(arguments: list[str], tokens: int | None):
    assert engine_tokens(arguments) == tokens
    spec = ModelServiceSpec.model_validate(
        {
            "model": {"name": "llama-3.1-8b", "source": "hf://meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"args": arguments},
            "pools": [{"name": "mixed", "accelerator": "gpu"}],
        }
    )
    worker = worker_of_pool(spec, spec.pools[0], AcceleratorClassSpec(hardware="l40s"))
    assert worker.step_tokens == (tokens or 2048)


@pytest.mark.parametrize("value", ["much", ""])
def test_a_share_that_is_no_number_is_left_to_the_engine(value: str):
    assert ask("hf://meta-llama/Llama-3.1-8B-Instruct", args=["--gpu-memory-utilization", value]).kv_tokens == 457_984


def test_the_memory_of_an_accelerator_class_counts():
    assert ask("hf://meta-llama/Llama-3.1-8B-Instruct", accelerator={"memory": "94Gi"}).kv_tokens > 500_000
    assert ask("hf://meta-llama/Llama-3.1-8B-Instruct", accelerator={"memory": "16Gi"}).verdict is Verdict.TOO_SMALL


def test_a_mirror_keeps_the_shape_of_the_served_name():
    spec = ModelServiceSpec.model_validate(
        {
            "model": {"name": "llama-3.1-8b", "source": "s3://weights/ours"},
            "pools": [{"name": "mixed", "accelerator": "gpu"}],
        }
    )
    assert fits(spec, spec.pools[0], AcceleratorClassSpec(hardware="h100-sxm")).verdict is Verdict.FITS


def test_a_served_name_alone_never_keeps_a_service_from_starting():
    """FP8 weights of somebody's repository, served under the original's name, would fit."""
    spec = ModelServiceSpec.model_validate(
        {
            "model": {"name": "llama-3.3-70b", "source": "hf://somebody/Llama-3.3-70B-Instruct-FP8-dynamic"},
            "engine": {"maxModelLen": 16384},
            "pools": [{"name": "mixed", "accelerator": "gpu"}],
        }
    )
    fit = fits(spec, spec.pools[0], AcceleratorClassSpec(hardware="h100-sxm"))
    assert fit.verdict is Verdict.UNKNOWN
    assert "if it is llama-3.3-70b as published, llama-3.3-70b (BF16) on one h100-sxm does not fit" in fit.message


@pytest.mark.parametrize("flag", ["--cpu-offload-gb=80", "--cpu_offload_gb=80", "--kv-cache-memory-bytes=4G"])
def test_a_flag_that_moves_memory_keeps_the_answer_open(flag: str):
    fit = ask("hf://meta-llama/Llama-3.1-70B-Instruct", args=[flag])
    assert fit.verdict is Verdict.UNKNOWN
    assert fit.message.startswith("not counting what --")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model": "s3://weights/ours"}, "not known"),
        ({"accelerator": {"hardware": "tpu-v5"}}, "'tpu-v5' is not known"),
        ({"quantization": "bitsandbytes"}, "'bitsandbytes' is not a known format"),
        ({"pool": {"parallelism": {"data": 2}}}, "no experts to spread"),
    ],
)
def test_what_is_not_understood_is_unknown_and_keeps_nothing_from_starting(changes: dict, text: str):
    fit = ask(changes.pop("model", "hf://meta-llama/Llama-3.1-8B-Instruct"), **changes)
    assert fit.verdict is Verdict.UNKNOWN
    assert text in fit.message


def test_without_a_larger_size_the_message_asks_for_more_memory():
    fit = check_worker(Worker(shape_of("llama-3.1-405b"), accelerator_of("l40s")), 1024)
    assert fit.verdict is Verdict.TOO_SMALL
    assert "raise parallelism.tensor" not in fit.message
    assert "use an accelerator with more memory" in fit.message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parallelism": Parallelism(tensor=3)}, "tensor"),
        ({"parallelism": Parallelism(tensor=0)}, "tensor"),
        ({"parallelism": Parallelism(tensor=2.0)}, "tensor"),  # type: ignore[arg-type]
        ({"parallelism": Parallelism(pipeline=33)}, "pipeline"),
        ({"parallelism": Parallelism(data=2)}, "data"),
        ({"parallelism": Parallelism(expert=True)}, "expert"),
        ({"weights": "fp7"}, "weights"),
        ({"weights": "mxfp4"}, "weights"),
        ({"kv": "int4"}, "kv"),
        ({"utilization": 1.5}, "utilization"),
        ({"utilization": float("nan")}, "utilization"),
        ({"reserve_bytes": -1.0}, "reserve_bytes"),
    ],
)
def test_an_impossible_worker_is_refused_with_its_field_and_a_fix(changes: dict, field: str):
    with pytest.raises(ImpossibleError) as caught:
        Worker(shape_of("llama-3.1-8b"), H100, **changes)
    assert caught.value.field == field
    assert caught.value.fix


def test_more_gpus_than_experts_are_refused():
    with pytest.raises(ImpossibleError, match="16 GPUs for 8 experts"):
        Worker(shape_of("mixtral-8x7b"), H100, Parallelism(tensor=2, data=8, expert=True))


def test_experts_are_spread_over_data_ranks_and_attention_is_repeated():
    shape = shape_of("deepseek-v3")
    worker = Worker(shape, accelerator_of("h200"), Parallelism(data=8, expert=True))
    kept = shape.weight_bytes() - shape.expert_parameters * 7 / 8
    assert worker.weight_bytes_per_gpu == pytest.approx(kept)


def test_pipeline_stages_share_the_layers():
    shape = shape_of("llama-3.1-405b")
    worker = Worker(shape, H100, Parallelism(tensor=8, pipeline=2))
    assert worker.weight_bytes_per_gpu == pytest.approx(shape.weight_bytes() / 16, rel=0.01)
    assert worker.kv_bytes_per_token == shape.kv_bytes_per_token(tensor=8) / 2
