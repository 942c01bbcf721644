import json
from pathlib import Path

import pytest
import typer
import yaml
from click.testing import Result
from typer.testing import CliRunner

from forebay_api.modelservice import ModelService
from forebay_cli.plan import EXAMPLES, plan

CONFIGS = Path(__file__).resolve().parent.parent / "data" / "capacity" / "configs"
SAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "samples"
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(plan)


def run(*arguments: str, code: int = 0) -> Result:
    """One run of the command on one size of worker; its exit code must be `code`."""
    result = CliRunner().invoke(app, ["--tensor", "1", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_a_plan_shows_six_numbers_the_limit_and_the_options():
    output = run("--model", "llama-3.1-8b", "--rate", "20").stdout
    for text in ("16.06 GB", "128 KiB", "15.0 GiB", "445,008", "4.79 ms", "what binds", "3 TP1 mixed"):
        assert text in output, text


def test_nothing_leaves_the_screen_of_a_pipe():
    assert max(len(line) for line in run("--model", "llama-3.1-8b").stdout.splitlines()) <= 120


def test_a_refusal_is_a_sentence_with_exit_code_1():
    output = run("--model", "llama-3.1-8b", "--input-tokens", "20000", code=1).stdout
    assert "No layout meets the objective" in output
    assert "TTFT 0.5 s is impossible above 14.5k uncached tokens on one h100-sxm" in output


@pytest.mark.parametrize(("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_a_document_has_the_same_numbers(output: str, read):
    document = read(run("--model", "llama-3.1-8b", "--rate", "20", "-o", output).stdout)
    assert document["model"]["weightBytes"] == 16_060_522_496
    assert document["model"]["kvBytesPerToken"] == 131_072
    assert document["workers"][0]["kvTokens"] == 445_008
    assert document["workers"][0]["limit"] == "tpot"
    assert [option["option"] for option in document["options"]] == list(range(1, len(document["options"]) + 1))
    assert document["options"][0]["attainment"] >= 0.99
    assert document["refusals"] == []


def test_a_refusal_is_a_document_too_and_infinite_becomes_null():
    result = run("--model", "llama-3.1-70b", "--pipeline", "1", "-o", "json", code=1)
    document = json.loads(result.stdout)
    assert document["options"] == []
    assert document["refusals"][0]["cause"] == "memory"
    assert document["workers"][0]["usdPerMillionOutputTokens"] is None


def test_a_config_file_stands_for_a_preset():
    path = CONFIGS / "llama-3.1-8b.json"
    by_file = json.loads(run("--config", str(path), "--model", "llama-3.1-8b", "-o", "json").stdout)
    by_name = json.loads(run("--model", "llama-3.1-8b", "-o", "json").stdout)
    assert by_file == by_name


def test_a_written_service_is_valid_and_holds_the_plan(tmp_path: Path):
    path = tmp_path / "service.yaml"
    run("--model", "llama-3.1-8b", "--rate", "20", "--option", "2", "--write", str(path))
    manifest = yaml.safe_load(path.read_text())
    service = ModelService.model_validate(manifest)
    assert manifest["metadata"]["name"] == "llama-3-1-8b"
    assert service.spec.model.source == "hf://meta-llama/Llama-3.1-8B-Instruct"
    assert sum(pool.replicas.min for pool in service.spec.pools) == 3
    assert all(pool.replicas.max > pool.replicas.min for pool in service.spec.pools)


def test_a_written_service_can_be_planned_again(tmp_path: Path):
    path = tmp_path / "service.yaml"
    run("--model", "llama-3.1-8b", "--weights", "fp8", "--kv", "fp8", "--rate", "20", "--write", str(path))
    output = run("--file", str(path), "--rate", "20").stdout
    assert "FP8 weights" in output
    assert "of FP8 KV" in output
    assert "at replicas.min it holds" in output
    assert "enough for 20" in output


def test_a_service_keeps_what_the_plan_does_not_decide():
    sample = SAMPLES / "llama-8b-prefill-decode.yaml"
    before = yaml.safe_load(sample.read_text())
    output = run("-f", str(sample), "--rate", "30", "-o", "json", "--write", "-").stdout
    after = yaml.safe_load(output[output.index("# Planned for") :])
    assert after["metadata"] == before["metadata"]
    assert after["spec"]["model"] == before["spec"]["model"]
    assert after["spec"]["engine"] == before["spec"]["engine"]
    assert after["spec"]["pools"] != before["spec"]["pools"]


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("llama-8b*.yaml")), ids=lambda path: path.stem)
def test_the_samples_are_planned(sample: Path):
    assert "as written" in run("-f", str(sample), "--rate", "2").stdout


def test_a_service_is_planned_with_its_engines_own_limit(tmp_path: Path):
    manifest = yaml.safe_load((SAMPLES / "llama-8b-prefill-decode.yaml").read_text())

    def layouts(*flags: str, args: list[str]) -> object:
        manifest["spec"]["engine"] = {"args": args}
        path = tmp_path / "service.yaml"
        path.write_text(yaml.safe_dump(manifest))
        return json.loads(run("-f", str(path), "--rate", "30", "-o", "json", *flags).stdout)["options"]

    assert layouts(args=["--max-num-batched-tokens", "300"]) == layouts("--max-num-batched-tokens", "300", args=[])
    assert layouts("--max-num-batched-tokens", "300", args=[]) != layouts(args=[])
    assert layouts(args=["--max-num-seqs", "4"]) == layouts("--max-num-seqs", "4", args=[]) != layouts(args=[])


def test_accelerator_classes_of_the_file_count(tmp_path: Path):
    path = tmp_path / "service.yaml"
    path.write_text(
        """
apiVersion: forebay.dev/v1alpha1
kind: AcceleratorClass
metadata: {name: big}
spec: {hardware: h200, pricePerHour: "7"}
---
apiVersion: forebay.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  model: {name: llama-3.1-8b, source: "s3://bucket/weights"}
  pools: [{name: mixed, accelerator: big, replicas: {min: 1, max: 2}}]
"""
    )
    output = run("-f", str(path), "--rate", "2", "--write", "-").stdout
    assert "H200" in output
    assert "$7.00" in output
    assert "accelerator: big" in output


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_plot_is_drawn(tmp_path: Path, ending: str, start: bytes):
    path = tmp_path / f"plan.{ending}"
    run("--model", "llama-3.1-8b", "--rate", "5", "--plot", str(path))
    assert path.read_bytes().startswith(start)
    assert path.stat().st_size > 10_000


def test_a_refused_plan_is_drawn_too(tmp_path: Path):
    path = tmp_path / "plan.svg"
    run("--model", "llama-3.1-8b", "--input-tokens", "20000", "--plot", str(path), code=1)
    assert path.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--model: nothing to plan for; give --model, --config or --file"),
        (["--model", "lama-8b"], "--model: 'lama-8b' is not known; did you mean"),
        (["--model", "llama-3.1-8b", "-a", "h900"], "--accelerator: 'h900' is not known; did you mean"),
        (["--model", "llama-3.1-8b", "--rate", "0"], "--rate: 0.0 requests per second is out of range"),
        (["--model", "llama-3.1-8b", "--rate", "-1"], "--rate: -1.0 requests per second is out of range"),
        (["--model", "llama-3.1-8b", "--input-tokens", "0"], "--input-tokens: 0 is not a number of tokens"),
        (["--model", "llama-3.1-8b", "--cached-share", "2"], "--cached-share: 2.0 is not a share"),
        (["--model", "llama-3.1-8b", "--ttft", "0.5"], "--ttft: '0.5' is not a duration; write 500ms or 2s"),
        (["--model", "llama-3.1-8b", "--tpot", "0ms"], "--tpot: 0.0 seconds is out of range"),
        (["--model", "llama-3.1-8b", "--target", "99"], "--target: 99 is not a share of requests"),
        (["--model", "llama-3.1-8b", "--tensor", "3"], "--tensor: 3 does not divide the 32 attention heads"),
        (["--model", "llama-3.1-8b", "--expert-parallel"], "--expert-parallel: llama-3.1-8b has no experts"),
        (["--model", "llama-3.1-8b", "--weights", "fp7"], "--weights: 'fp7' is not a known format; use one of bf16"),
        (["--model", "llama-3.1-8b", "--kv", "int4"], "--kv: 'int4' is not a known format; use one of bf16, fp8"),
        (["--model", "llama-3.1-8b", "--gpus", "0"], "--gpus: 0 GPUs serve nothing"),
        (["--model", "llama-3.1-8b", "--price", "-1"], "--price: -1.0 USD per hour is out of range"),
        (["--model", "llama-3.1-8b", "--max-num-seqs", "0"], "--max-num-seqs: 0 is out of range"),
        (["--model", "llama-3.1-8b", "--utilization", "7"], "--utilization: 7.0 is not a share"),
        (["--model", "llama-3.1-8b", "-o", "xml"], "--output: 'xml' is not a format; use table, json or yaml"),
        (["--model", "llama-3.1-8b", "--plot", "x.pdf"], "--plot: 'x.pdf' has no known ending"),
        (["--model", "llama-3.1-8b", "--plot", "/nonexistent/x.png"], "--plot: /nonexistent/x.png cannot be written"),
        (["--model", "llama-3.1-8b", "--option", "99", "--write", "-"], "--option: there is no option 99"),
        (["--config", "missing.json"], "config: missing.json cannot be read"),
        (["--file", "missing.yaml"], "--file: missing.yaml cannot be read"),
    ],
)
def test_a_bad_value_is_one_sentence_that_names_the_flag_and_the_fix(arguments: list[str], text: str):
    result = run(*arguments, code=1)
    assert f"error: {text}" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("not json", "is not JSON"),
        ("[]", "config: a JSON object is needed, not list"),
        ("{}", "model_type: missing; supported are"),
        ('{"model_type": "mamba2"}', "model_type: 'mamba2' is not a supported architecture; supported are"),
        ('{"model_type": "llama", "hidden_size": "big"}', "hidden_size: 'big' is not a count"),
    ],
)
def test_a_garbage_config_is_one_sentence_that_names_the_key(tmp_path: Path, content: str, text: str):
    path = tmp_path / "config.json"
    path.write_text(content)
    assert text in run("--config", str(path), code=1).stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "is not YAML"),
        ("a: 1", "has 0 ModelServices"),
        ("kind: ModelService\nmetadata: {name: x}\nspec: {}", "model: Field required"),
        ("kind: ModelService\nmetadata: {name: x}", "Input should be"),
        ("caf\xe9", "is not YAML"),
    ],
)
def test_a_garbage_manifest_is_one_sentence(tmp_path: Path, content: str, text: str):
    path = tmp_path / "service.yaml"
    path.write_bytes(content.encode("latin-1"))
    assert text in run("-f", str(path), code=1).stderr


def test_a_model_of_unknown_source_is_not_written():
    result = run("--config", str(CONFIGS / "qwen2.5-7b.json"), "--model", "ours", "--write", "-", code=1)
    assert "--write: where the weights of ours are is not known" in result.stderr


def test_the_examples_of_the_help_are_commands():
    """Each line that starts with the command's name names only options that exist."""
    known = {option for parameter in typer.main.get_command(app).params for option in parameter.opts}
    lines = [line for line in EXAMPLES.splitlines() if "forebay plan" in line]
    assert len(lines) >= 5
    for line in lines:
        words = line.split("[cyan]")[1].split("[/]")[0].split("&&")[0].split()
        assert {word for word in words if word.startswith("-")} <= known
