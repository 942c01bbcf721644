"""Manifests and plans: a plan for a ModelService as written, and a ModelService from a plan."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from forebay_api import names
from forebay_api.acceleratorclass import AcceleratorClassSpec
from forebay_api.durations import format_duration
from forebay_api.modelservice import ModelService, ModelServiceSpec, Pool, Role
from forebay_api.objective import Objective
from forebay_capacity.accelerators import Accelerator
from forebay_capacity.architecture import ModelShape
from forebay_capacity.dtypes import Dtype, kv_dtype, weights_dtype
from forebay_capacity.errors import ImpossibleError, UnknownModelError
from forebay_capacity.fits import Fit, accelerator_of_class, fits, longest_request, worker_of_pool
from forebay_capacity.layouts import Layout, MixedLayout, PoolSize, SplitLayout
from forebay_capacity.options import Option, highest_rate
from forebay_capacity.planning import Demand, Plan
from forebay_capacity.presets import SOURCES
from forebay_capacity.shapes import shape_of

SPARE = 1.5
"""A written pool may grow to this multiple of the planned workers."""


@dataclass(frozen=True, slots=True)
class ReadPool:
    """One pool of a manifest, judged."""

    title: str
    worker_title: str
    fit: Fit


@dataclass(frozen=True, slots=True)
class ReadService:
    """A ModelService manifest and the AcceleratorClasses beside it."""

    manifest: dict[str, Any]
    """The ModelService as it stands in the file."""
    spec: ModelServiceSpec
    classes: dict[str, AcceleratorClassSpec]

    @property
    def name(self) -> str:
        """The service's name."""
        return _name(self.manifest)

    def class_name(self, accelerator: Accelerator) -> str:
        """The AcceleratorClass that stands for a piece of hardware."""
        named = (name for name, one in self.classes.items() if accelerator_of_class(one).name == accelerator.name)
        return next(named, accelerator.name)

    @property
    def objective(self) -> Objective:
        """The objective as numbers."""
        return self.spec.objective.to_objective()

    @property
    def weights(self) -> Dtype | None:
        """The weights' format; None as published."""
        return None if self.spec.engine.quantization is None else weights_dtype(self.spec.engine.quantization)

    @property
    def kv(self) -> Dtype:
        """The KV cache's format."""
        stated = self.spec.engine.kv_cache_dtype
        return Dtype.BF16 if stated in {None, "auto"} else kv_dtype(str(stated))

    def shape(self) -> ModelShape:
        """The model, by its source, else by its served name."""
        try:
            return shape_of(self.spec.model.source)
        except UnknownModelError:
            return shape_of(self.spec.model.name)

    def accelerator_class(self, pool: Pool) -> AcceleratorClassSpec:
        """The class that a pool names; one that is not in the file is taken to be named after its hardware."""
        return self.classes.get(pool.accelerator) or AcceleratorClassSpec(hardware=pool.accelerator)

    def accelerators(self) -> Iterator[Accelerator]:
        """The accelerators of all pools."""
        for pool in self.spec.pools:
            yield accelerator_of_class(self.accelerator_class(pool))

    def pools(self) -> Iterator[ReadPool]:
        """Each pool with its answer to "does a worker fit"."""
        for pool in self.spec.pools:
            parallelism = pool.parallelism
            yield ReadPool(
                f"{pool.name} ({pool.role})",
                f"{parallelism.accelerators} x {pool.accelerator}, {pool.replicas.min} to {pool.replicas.max} of them",
                fits(self.spec, pool, self.accelerator_class(pool)),
            )

    def capacity_lines(self, demand: Demand) -> Iterator[str]:
        """What the pools hold of the workload, at their smallest and largest."""
        for size in ("min", "max"):
            layouts = self._layouts(size)
            if layouts is None:
                yield "more than one prefill or decode pool: not evaluated together"
                return
            rate = sum(highest_rate(layout, demand.workload, demand.objective, demand.serving) for layout in layouts)
            enough = "enough" if rate >= demand.workload.rate_per_s else "not enough"
            yield (
                f"at replicas.{size} it holds {rate:.3g} requests/s within the objective: "
                f"{enough} for {demand.workload.rate_per_s:g}"
            )

    def _layouts(self, size: str) -> list[Layout] | None:
        """Mixed pools share the load; one prefill and one decode pool work together; None for anything else."""
        pools = {role: [pool for pool in self.spec.pools if pool.role is role] for role in Role}
        if pools[Role.MIXED]:
            return [MixedLayout(sized) for pool in pools[Role.MIXED] if (sized := self._sized(pool, size))]
        if len(pools[Role.PREFILL]) != 1 or len(pools[Role.DECODE]) != 1:
            return None
        prefill, decode = (self._sized(pools[role][0], size) for role in (Role.PREFILL, Role.DECODE))
        return [SplitLayout(prefill, decode)] if prefill and decode else []

    def _sized(self, pool: Pool, size: str) -> PoolSize | None:
        replicas = pool.replicas.min if size == "min" else pool.replicas.max
        return PoolSize(worker_of_pool(self.spec, pool, self.accelerator_class(pool)), replicas) if replicas else None


def read_service(path: Path) -> ReadService:
    """The one ModelService of a YAML file; `CapacityError` says what is wrong with the file."""
    try:
        documents = [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]
    except OSError as error:
        raise ImpossibleError("file", f"{path} cannot be read ({error.strerror})", "check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ImpossibleError("file", f"{path} is not YAML ({_one_line(error)})", "give a manifest") from error
    services = list(_of_kind(documents, names.MODEL_SERVICE_KIND))
    if len(services) != 1:
        raise ImpossibleError("file", f"{path} has {len(services)} ModelServices", "give a file with one")
    try:
        spec = ModelServiceSpec.model_validate(services[0].get("spec"))
        classes = {
            _name(one): AcceleratorClassSpec.model_validate(one.get("spec"))
            for one in _of_kind(documents, names.ACCELERATOR_CLASS_KIND)
        }
    except ValidationError as error:
        raise ImpossibleError("file", f"{path}: {_validation_text(error)}", "correct the manifest") from error
    return ReadService(services[0], spec, classes)


def manifest_text(plan: Plan, option: Option, service: ReadService | None) -> str:
    """A ModelService of one option, ready to apply, with the plan's numbers as a comment."""
    manifest = _manifest(plan, option, service)
    ModelService.model_validate(manifest)
    workload = plan.demand.workload
    holds = f"{option.rate_max_per_s:.3g}"
    head = (
        f"# Planned for {workload.rate_per_s:g} requests/s of {workload.input_tokens:,} tokens in, "
        f"{workload.output_tokens:,} out: {option.gpus} GPUs, ${option.price_usd_per_hour:.2f} an hour.\n"
        f"# replicas.min holds up to {holds} requests/s within the objective; lower it where traffic sleeps.\n"
    )
    return head + yaml.safe_dump(manifest, sort_keys=False)


def _manifest(plan: Plan, option: Option, service: ReadService | None) -> dict[str, Any]:
    """The option as a manifest; what the given manifest says beyond the plan stays as it is."""
    demand, objective = plan.demand, plan.demand.objective
    pools = list(_pools(option.layout, service))
    promise = {
        "ttft": format_duration(objective.ttft_s),
        "tpot": format_duration(objective.tpot_s),
        "target": f"{objective.target:.4g}",
    }
    if service is not None:
        spec = {**service.manifest["spec"], "objective": promise, "pools": pools}
        return {**service.manifest, "spec": spec}
    autoscaling: dict[str, Any] = {"mode": "Auto"}
    if demand.gpus_max is not None:
        autoscaling["budget"] = {"gpus": demand.gpus_max}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.MODEL_SERVICE_KIND,
        "metadata": {"name": _resource_name(demand.shape.name)},
        "spec": {
            "model": _model(demand),
            "engine": _engine(plan, option),
            "objective": promise,
            "pools": pools,
            "autoscaling": autoscaling,
        },
    }


def _model(demand: Demand) -> dict[str, str]:
    name = demand.shape.name
    source = SOURCES.get(name)
    if source is None:
        raise ImpossibleError(
            "write", f"where the weights of {name} are is not known", "give --model, or a --file with model.source"
        )
    return {"name": name, "source": f"hf://{source}"}


def _engine(plan: Plan, option: Option) -> dict[str, Any]:
    demand = plan.demand
    engine: dict[str, Any] = {"maxModelLen": _max_model_len(plan, option)}
    if demand.weights is not None and demand.weights is not demand.shape.native:
        engine["quantization"] = {Dtype.INT4: "awq"}.get(Dtype(demand.weights), str(demand.weights))
    if demand.kv is Dtype.FP8:
        engine["kvCacheDtype"] = "fp8"
    return engine


def _pools(layout: Layout, service: ReadService | None) -> Iterator[dict[str, Any]]:
    roles = ["Mixed"] if isinstance(layout, MixedLayout) else ["Prefill", "Decode"]
    for role, pool in zip(roles, layout.pools, strict=True):
        accelerator, parallelism = pool.worker.accelerator, pool.worker.parallelism
        sizes = {"tensor": parallelism.tensor, "pipeline": parallelism.pipeline, "data": parallelism.data}
        yield {
            "name": role.lower(),
            "role": role,
            "accelerator": accelerator.name if service is None else service.class_name(accelerator),
            "replicas": {"min": pool.replicas, "max": math.ceil(pool.replicas * SPARE)},
            "parallelism": {field: size for field, size in sizes.items() if size > 1 or field == "tensor"},
        }


def _max_model_len(plan: Plan, option: Option) -> int:
    """The model's own limit, or as much of it as every worker holds in one request, in thousands of tokens."""
    held = min(longest_request(pool.worker) for pool in option.layout.pools)
    limit = min(plan.demand.shape.max_context_tokens, held)
    return limit if limit == plan.demand.shape.max_context_tokens or limit < 1024 else limit // 1024 * 1024


def _resource_name(model: str) -> str:
    """A name that Kubernetes takes, from the model's."""
    kept = "".join(letter if letter.isalnum() else "-" for letter in model.lower())[:40].strip("-")
    return kept if kept[:1].isalpha() else f"m-{kept}"[:40].strip("-")


def _of_kind(documents: Iterable[Any], kind: str) -> Iterator[dict[str, Any]]:
    for one in documents:
        if isinstance(one, dict) and one.get("kind") == kind:
            yield one


def _name(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name", "unnamed")) if isinstance(metadata, dict) else "unnamed"


def _validation_text(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'spec'}: {first['msg']}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
