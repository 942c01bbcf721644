"""The paths of the data plane.

One table: what is forwarded, in whose error shape, whether its body is JSON or a form, which dialect its event streams speak,
and what the router may do with it. Every path shares the one relay.
"""

from dataclasses import dataclass
from enum import StrEnum

from forebay_router.errors import Shape


class Dialect(StrEnum):
    """How a path's event stream spells content, usage and its end."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OPAQUE = "opaque"
    """Not looked into."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One forwarded path; always POST."""

    path: str
    dialect: Dialect = Dialect.OPAQUE
    shape: Shape = Shape.OPENAI
    splittable: bool = False
    """Prefill and decode may run on different workers."""
    usage_on_request: bool = False
    """A stream tells token counts only when stream_options.include_usage asks for them."""
    judged: bool = True
    """Counts towards goodput; helper calls such as /tokenize do not."""
    form: bool = False
    """The body is multipart/form-data, the model one of its fields."""

    @property
    def prompted(self) -> bool:
        """It generates from a prompt, which workers cache."""
        return self.dialect is not Dialect.OPAQUE


_FORWARDED = (
    Endpoint("/v1/chat/completions", Dialect.CHAT, splittable=True, usage_on_request=True),
    Endpoint("/v1/completions", Dialect.COMPLETION, splittable=True, usage_on_request=True),
    Endpoint("/v1/responses", Dialect.RESPONSES),
    Endpoint("/v1/messages", Dialect.MESSAGES, Shape.ANTHROPIC),
    Endpoint("/v1/messages/count_tokens", Dialect.MESSAGES, Shape.ANTHROPIC, judged=False),
    Endpoint("/v1/embeddings"),
    Endpoint("/pooling"),
    Endpoint("/v1/pooling"),
    Endpoint("/classify"),
    Endpoint("/v1/classify"),
    Endpoint("/score"),
    Endpoint("/v1/score"),
    Endpoint("/rerank"),
    Endpoint("/v1/rerank"),
    Endpoint("/v2/rerank"),
    Endpoint("/v1/audio/transcriptions", form=True),
    Endpoint("/v1/audio/translations", form=True),
    Endpoint("/v1/audio/speech"),
    Endpoint("/tokenize", judged=False),
    Endpoint("/detokenize", judged=False),
    Endpoint("/v1/chat/completions/render", judged=False),
    Endpoint("/v1/completions/render", judged=False),
)
ENDPOINTS = {endpoint.path.encode(): endpoint for endpoint in _FORWARDED}
MODELS_PATH = b"/v1/models"
HEALTH_PATHS = frozenset({b"/health", b"/ping"})


def shape_of(path: bytes) -> Shape:
    """Whose error format a path speaks, known or not."""
    return Shape.ANTHROPIC if path.startswith(b"/v1/messages") else Shape.OPENAI
