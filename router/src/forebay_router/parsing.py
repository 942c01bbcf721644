"""From bytes to what the router needs to know of a request. The body is parsed once, at most.

Of a long body the long texts are left where they are (`skimming`), if the prefix index takes all of them; of what else may stand
in one nobody knows what it is good for. Then `outline` has all fields but those texts, and `fields` reads the body after all.

Estimates. Tokens are not counted here: a prompt has about one token for every `BYTES_PER_TOKEN` bytes of its body, which is
good enough to compare workers with one another.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from forebay_router import errors
from forebay_router.bodies import LONG_BYTES, Body
from forebay_router.endpoints import Endpoint
from forebay_router.index.content import Content, content_of
from forebay_router.index.sessions import session_of
from forebay_router.serialising import TooDeepError
from forebay_router.skimming import Piece, skim

BYTES_PER_TOKEN = 4
CONTENT_MIN_BYTES = 256
"""A smaller body is not looked up: its few tokens are computed again sooner than any choice could gain by them."""
DEFAULT_OUTPUT_TOKENS = 256
"""Expected output where the client sets no limit, and the most that is expected where it sets a large one."""
_BOUNDARY = re.compile(rb'boundary="?([^";,\r\n]{1,200})"?', re.IGNORECASE)
_FIELD_NAME = re.compile(rb'(?:^|[;\s])name="?([^";\r\n]+)"?', re.IGNORECASE)


@dataclass(slots=True)
class ParsedRequest:
    """What a request asks for."""

    endpoint: Endpoint
    model: str | None
    """None when the client named none."""
    stream: bool
    """An event stream is asked for. Engines take 1 and "true" for true as well."""
    body: Body
    kept_fields: dict[str, Any] | None
    """The JSON body while it is kept, or its outline; None for forms."""
    prompt_tokens: int
    """Estimate."""
    output_tokens: int
    """Estimate."""
    choices: int = 1
    """Answers asked for; token counts are their sum."""
    content: Content | None = None
    """The prompt as the prefix index sees it; None where workers cache none, or where it is too short to matter."""
    session: int | None = None
    """What the client calls its session, as a hash; None without content, too."""
    tokens_told: bool = False
    """Its tokens have been made, or cannot be; they are in `content`."""
    cut_bytes: int = 0
    """Of long texts that are not in its fields, and can be read."""
    texts: dict[str, Piece] | None = None
    """Those, until it is sent: they may keep a body that another one has taken the place of."""
    away: bool = False
    """Its fields have been dropped, and can be read again."""

    @property
    def cut(self) -> bool:
        """Long texts are not in its fields."""
        return self.cut_bytes > 0

    @property
    def fields(self) -> dict[str, Any] | None:
        """The JSON body; None for forms. Raises RequestRefused for what is wrong in a long text."""
        if self.cut or self.away:
            self.kept_fields, self.texts, self.cut_bytes, self.away = _loaded(self.body), None, 0, False
        return self.kept_fields

    @property
    def outline(self) -> dict[str, Any] | None:
        """The JSON body for who looks at small fields: markers may stand for long texts."""
        return self.fields if self.away else self.kept_fields

    @property
    def parts(self) -> tuple[dict[str, Any] | None, dict[str, Piece]]:
        """The JSON body, and the texts that markers in it stand for."""
        if self.texts is None:
            return self.fields, {}
        return self.kept_fields, self.texts

    def put_away(self) -> None:
        """It has been sent. What was read is as large as its part of the body, and needed for another attempt only."""
        self.texts = None
        if self.kept_fields is not None and len(self.body) - self.cut_bytes >= LONG_BYTES:
            self.kept_fields, self.away = None, True

    def forget(self) -> None:
        """The answer has begun, so there is no second attempt: a long prompt need not be kept for the rest of the stream."""
        self.body = b""
        self.kept_fields = self.texts = None
        self.cut_bytes, self.away = 0, False
        self.content = None


def parse_request(endpoint: Endpoint, headers: Mapping[bytes, bytes], body: Body) -> ParsedRequest:
    """Read a body; raises RequestRefused (400) when it cannot be understood."""
    if endpoint.form:
        return _parse_form(endpoint, headers, bytes(body))
    skimmed = skim(body) if endpoint.prompted and len(body) >= LONG_BYTES else None
    if skimmed is not None:
        left = dict(skimmed.texts)
        request = _parse(endpoint, headers, body, _object(skimmed.outline), left)
        if not left:
            request.cut_bytes = sum(stop - start for _, start, stop in skimmed.texts.values())
            request.texts = skimmed.texts
            return request
    return _parse(endpoint, headers, body, _loaded(body), {})


def _loaded(body: Body) -> dict[str, Any]:
    """All of a body; raises RequestRefused."""
    try:
        return _object(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise errors.bad_body(f"The request body is not valid JSON: {error}.") from error


def _object(read: Any) -> dict[str, Any]:
    if not isinstance(read, dict):
        raise errors.bad_body("The request body must be a JSON object.")
    return read


def _parse(
    endpoint: Endpoint, headers: Mapping[bytes, bytes], body: Body, fields: dict[str, Any], cut: dict[str, Piece]
) -> ParsedRequest:
    """What a body asks for. Texts that were cut out of it are taken out of `cut` where they are content."""
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise errors.bad_body("The field `model` must be a string.", "model")
    content = _content(fields, cut) if endpoint.prompted and len(body) >= CONTENT_MIN_BYTES else None
    return ParsedRequest(
        endpoint=endpoint,
        model=model,
        stream=bool(fields.get("stream")),
        body=body,
        kept_fields=fields,
        prompt_tokens=len(body) // BYTES_PER_TOKEN,
        output_tokens=_expected_output(fields),
        choices=_choices(fields),
        content=content,
        session=None if content is None else session_of(headers, fields),
    )


def _content(fields: dict[str, Any], cut: dict[str, Piece]) -> Content | None:
    try:
        return content_of(fields, cut)
    except TooDeepError as error:
        raise errors.too_deep() from error


def _expected_output(fields: dict[str, Any]) -> int:
    limit = fields.get("max_completion_tokens") or fields.get("max_tokens") or fields.get("max_output_tokens")
    if isinstance(limit, int) and limit > 0:
        return min(limit, DEFAULT_OUTPUT_TOKENS)
    return DEFAULT_OUTPUT_TOKENS


def _choices(fields: dict[str, Any]) -> int:
    """Of each prompt `n`; a completion may have several prompts."""
    count, prompts = fields.get("n"), fields.get("prompt")
    made = count if isinstance(count, int) and count > 1 else 1
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        made *= len(prompts)
    return made


def _parse_form(endpoint: Endpoint, headers: Mapping[bytes, bytes], body: bytes) -> ParsedRequest:
    found = _BOUNDARY.search(headers.get(b"content-type", b""))
    if found is None:
        raise errors.bad_body("The request must be multipart/form-data with a boundary.")
    texts = _form_texts(body, found.group(1))
    model = texts.get("model")
    return ParsedRequest(
        endpoint=endpoint,
        model=model,
        stream=texts.get("stream", "").lower() == "true",
        body=body,
        kept_fields=None,
        prompt_tokens=len(body) // BYTES_PER_TOKEN,
        output_tokens=DEFAULT_OUTPUT_TOKENS,
    )


def _form_texts(body: bytes, boundary: bytes) -> dict[str, str]:
    """The short text fields of a form; files are passed over."""
    texts = {}
    for part in body.split(b"--" + boundary)[1:]:
        head, _, value = part.partition(b"\r\n\r\n")
        if len(value) > 1024 or b"filename" in head:
            continue
        name = _FIELD_NAME.search(head)
        if name is not None:
            texts[name.group(1).decode(errors="replace")] = value.removesuffix(b"\r\n").decode(errors="replace")
    return texts
