"""The engine's metrics: plain numbers, rendered as prometheus-client renders them.

Counters and gauges are one dictionary by (family, label value); a histogram is a list of counts. Nothing here is computed
when it is scraped: gauges have the value the last engine step gave them, which is how vLLM behaves and what a router has
to cope with. Every counter, histogram and summary has a `_created` gauge beside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from forebay_simulator.engine.families import FAMILIES, HTTP_PREFIX, Family, Kind, When

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class Histogram:
    """Counts of observations by upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def go_float(value: float) -> str:
    """Format a number as Go does: exponents from a million on."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def labels_text(labels: dict[str, str]) -> str:
    """Format labels in alphabetical order, with braces; nothing for none."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in sorted(labels.items())) + "}"


class Metrics:
    """All families of one engine."""

    def __init__(self, *, model: str, created_s: float, extras: frozenset[When], info: dict[str, str]) -> None:
        self._model = model
        self._created = go_float(created_s)
        self._info = info
        self.families = [family for family in FAMILIES if family.when is When.ALWAYS or family.when in extras]
        self._numbers: dict[tuple[str, str], float] = {}
        self._histograms: dict[str, Histogram] = {}
        self.http = HttpMetrics(created_s)
        self.adapters: dict[tuple[str, str], float] = {}
        """Unix time by (running, waiting) adapters; None unless LoRA is on."""
        self.adapters_max: int | None = None
        for family in self.families:
            if family.name.startswith(HTTP_PREFIX):
                continue
            if family.kind is Kind.HISTOGRAM:
                self._histograms[family.name] = Histogram(family.buckets)
            else:
                for value in family.values or ("",):
                    self._numbers[family.name, value] = 0.0

    def add(self, name: str, amount: float = 1, value: str = "") -> None:
        """Increase a counter."""
        self._numbers[name, value] += amount

    def set(self, name: str, number: float, value: str = "") -> None:
        """Set a gauge."""
        assert (name, value) in self._numbers, f"no gauge {name} {value}"
        self._numbers[name, value] = number

    def get(self, name: str, value: str = "") -> float:
        """Read a counter or gauge."""
        return self._numbers[name, value]

    def histogram(self, name: str) -> Histogram:
        """Return a histogram, to keep and observe into."""
        return self._histograms[name]

    def render(self) -> bytes:
        """Return the exposition text."""
        lines: list[str] = []
        for family in self.families:
            if family.name.startswith(HTTP_PREFIX):
                lines += self.http.lines(family)
            else:
                lines += self._lines(family)
        if self.adapters_max is not None:
            lines += self._adapter_lines(self.adapters_max)
        lines.append("")
        return "\n".join(lines).encode()

    def _own_labels(self, family: Family, value: str = "") -> dict[str, str]:
        labels = {"engine": "0"} if family.per_engine else {}
        if family.per_model:
            labels["model_name"] = self._model
        if family.label:
            labels[family.label] = value
        return labels

    def _lines(self, family: Family) -> Iterator[str]:
        if family.kind is Kind.HISTOGRAM:
            labels = self._own_labels(family)
            yield from header(family.name, family.help, "histogram")
            yield from histogram_lines(family.name, self._histograms[family.name], labels)
            yield from header(f"{family.name}_created", family.help, "gauge")
            yield f"{family.name}_created{labels_text(labels)} {self._created}"
            return
        yield from header(family.name, family.help, family.kind.value)
        if family.name == "vllm:cache_config_info":
            yield f"{family.name}{labels_text({**self._info, 'engine': '0'})} 1.0"
            return
        values = family.values or ("",)
        for value in values:
            yield f"{family.name}{labels_text(self._own_labels(family, value))} {go_float(self._numbers[family.name, value])}"
        if family.kind is Kind.COUNTER:
            yield from header(f"{family.base}_created", family.help, "gauge")
            for value in values:
                yield f"{family.base}_created{labels_text(self._own_labels(family, value))} {self._created}"

    def _adapter_lines(self, adapters_max: int) -> Iterator[str]:
        yield from header("vllm:lora_requests_info", "Running stats on lora requests.", "gauge")
        for (running, waiting), unix_s in self.adapters.items():
            labels = {
                "max_lora": str(adapters_max),
                "running_lora_adapters": running,
                "waiting_lora_adapters": waiting,
            }
            yield f"vllm:lora_requests_info{labels_text(labels)} {go_float(unix_s)}"


def header(name: str, text: str, kind: str) -> tuple[str, str]:
    """Return the HELP and TYPE lines."""
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def histogram_lines(name: str, histogram: Histogram, labels: dict[str, str]) -> Iterator[str]:
    """Return buckets, count and sum."""
    running = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        running += count
        text = "+Inf" if bound == float("inf") else go_float(bound)
        yield f"{name}_bucket{labels_text({**labels, 'le': text})} {float(running)}"
    own = labels_text(labels)
    yield f"{name}_count{own} {float(running)}"
    yield f"{name}_sum{own} {go_float(histogram.total)}"


class HttpMetrics:
    """Requests by handler, as the instrumentator that vLLM uses counts them."""

    UNTRACKED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info"})
    """Paths that are not counted."""

    def __init__(self, created_s: float) -> None:
        self._created = go_float(created_s)
        buckets = {family.name: family.buckets for family in FAMILIES}
        self._coarse_bounds = buckets["http_request_duration_seconds"]
        self._fine = Histogram(buckets["http_request_duration_highr_seconds"])
        self._requests: dict[tuple[str, str, str], int] = {}
        self._coarse: dict[tuple[str, str], Histogram] = {}
        self._sizes: dict[str, dict[str, list[float]]] = {"request": {}, "response": {}}

    def observe(self, *, handler: str, method: str, status: int, seconds: float, sizes: tuple[int, int]) -> None:
        """Count one exchange. `sizes` are the content lengths of request and response; a stream's is 0."""
        key = (handler, method, f"{status // 100}xx")
        self._requests[key] = self._requests.get(key, 0) + 1
        self._fine.observe(seconds)
        coarse = self._coarse.get((handler, method))
        if coarse is None:
            coarse = self._coarse[handler, method] = Histogram(self._coarse_bounds)
        coarse.observe(seconds)
        for side, size in zip(("request", "response"), sizes, strict=True):
            sums = self._sizes[side].setdefault(handler, [0.0, 0.0])
            sums[0] += 1
            sums[1] += size

    def lines(self, family: Family) -> Iterator[str]:
        """Render one of the HTTP families."""
        yield from header(family.name, family.help, family.kind.value)
        samples: list[dict[str, str]] = []
        match family.name:
            case "http_requests_total":
                for (handler, method, status), count in self._requests.items():
                    samples.append({"handler": handler, "method": method, "status": status})
                    yield f"{family.name}{labels_text(samples[-1])} {float(count)}"
            case "http_request_size_bytes" | "http_response_size_bytes":
                side = "request" if "request" in family.name else "response"
                for handler, (times, total) in self._sizes[side].items():
                    samples.append({"handler": handler})
                    own = labels_text(samples[-1])
                    yield f"{family.name}_count{own} {times}"
                    yield f"{family.name}_sum{own} {go_float(total)}"
            case "http_request_duration_highr_seconds":
                samples.append({})
                yield from histogram_lines(family.name, self._fine, {})
            case _:
                for (handler, method), histogram in self._coarse.items():
                    samples.append({"handler": handler, "method": method})
                    yield from histogram_lines(family.name, histogram, samples[-1])
        yield from header(f"{family.base}_created", family.help, "gauge")
        for labels in samples:
            yield f"{family.base}_created{labels_text(labels)} {self._created}"
