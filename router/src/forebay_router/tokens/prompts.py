"""From a request's JSON to the text that the engine will tokenise, as vLLM does it.

A completion's text goes to the tokenizer as it is, with the tokenizer's own start token. A chat goes through the model's
template:

- A message's content is one text, its parts joined by newlines; or a list of text parts where the template goes through them
  itself. A tool's answer is one text in any case.
- Arguments of tool calls are parsed, since templates print them as JSON again. Reasoning is given under both of its names.
- Tools are given with name, description and parameters, in this order, absent ones as null; of the rest only what vLLM knows.
- The request's own fields go before `chat_template_kwargs` of the same name. A reasoning effort also switches thinking on or off.

What else decides tokens is either told to the template (`chat_template_kwargs`, `documents`, `reasoning_effort`) or beyond
this module: images and other media, a template of the client's own, several prompts at once, embeddings, prompts that are cut
off. Those requests are matched by what was sent. Whether all this is right for an engine is audited (`index.audit`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forebay_router.tokens.folder import ModelTokens
from forebay_router.tokens.template import TemplateRefusedError

_BEYOND: Final = ("chat_template", "mm_processor_kwargs", "prompt_embeds", "truncate_prompt_tokens", "media_io_kwargs")
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_FUNCTION_FIELDS: Final = ("name", "description", "parameters")
_FURTHER_FIELDS: Final = ("strict", "defer_loading")
_DROPPED_LINE: Final = "x-anthropic-billing-header"
"""Engines take a system prompt's first line out when it begins so."""


class NotTokenisableError(ValueError):
    """Only the engine can tell this request's tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What goes to the tokenizer."""

    text: str
    framed: bool
    """The tokenizer adds its own start and end tokens."""


def prompt_of(fields: Mapping[str, Any], tokens: ModelTokens) -> Prompt:
    """The prompt of a completion or a chat; raises NotTokenisableError."""
    if any(fields.get(name) is not None for name in _BEYOND):
        raise NotTokenisableError("it has fields that change its tokens")
    if "messages" in fields:
        return _chat(fields, tokens)
    text = fields.get("prompt")
    if isinstance(text, list) and len(text) == 1:
        (text,) = text
    if not isinstance(text, str):
        raise NotTokenisableError("it is no single text")
    return Prompt(text, framed=bool(fields.get("add_special_tokens", True)))


def _chat(fields: Mapping[str, Any], tokens: ModelTokens) -> Prompt:
    tools = fields.get("tools")
    template = tokens.template(tools=bool(tools))
    if template is None:
        raise NotTokenisableError("the model has no chat template")
    if "system" in fields or not isinstance(fields["messages"], list):
        raise NotTokenisableError("it is no chat of OpenAI's format")
    if fields.get("continue_final_message"):
        raise NotTokenisableError("it goes on with its last message")
    try:
        messages = [_message(one, parts=template.wants_parts) for one in fields["messages"]]
        if not template.knows_developer and any(one["role"] == "developer" for one in messages):
            raise NotTokenisableError("its template has no role developer")
        text = template.render(messages, tools=_tools(tools) if tools else None, **_given(fields))
    except (KeyError, TypeError, AttributeError, TemplateRefusedError) as error:
        raise NotTokenisableError(f"its template does not take it: {error!r}") from error
    return Prompt(text, framed=bool(fields.get("add_special_tokens", False)))


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What else the template is told."""
    extra = fields.get("chat_template_kwargs")
    given = {str(name): value for name, value in extra.items()} if isinstance(extra, Mapping) else {}
    given["add_generation_prompt"] = fields.get("add_generation_prompt", True)
    given["continue_final_message"] = False
    for name in ("documents", "reasoning_effort"):
        value = fields.get(name)
        if value is not None and value != "auto":
            given[name] = value
    if fields.get("reasoning_effort") is not None:
        given.setdefault("enable_thinking", fields["reasoning_effort"] != "none")
    given.pop("tools", None)
    given.pop("messages", None)
    return given


def _message(said: Mapping[str, Any], *, parts: bool) -> dict[str, Any]:
    """A message as templates get it."""
    role = said["role"]
    texts = _texts(said.get("content"))
    if role == "system" and any(text.startswith(_DROPPED_LINE) for text in texts):
        raise NotTokenisableError("the engine changes its system prompt")
    message: dict[str, Any] = {"role": role}
    if parts and role != "tool":
        message["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        message["content"] = "\n".join(texts)
    if role == "assistant":
        if said.get("tool_calls"):
            message["tool_calls"] = [_call(one) for one in said["tool_calls"]]
        if said.get("reasoning") is not None:
            message["reasoning"] = message["reasoning_content"] = said["reasoning"]
    elif role == "tool" and "tool_call_id" in said:
        message["tool_call_id"] = said["tool_call_id"]
    elif role == "developer":
        message["tools"] = said.get("tools")
    for name in ("name", "task"):
        if isinstance(said.get(name), str):
            message[name] = said[name]
    return message


def _texts(content: Any) -> list[str]:
    """The texts of a message's content."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part["type"]
        text = part.get("refusal" if kind == "refusal" else "thinking" if kind == "thinking" else "text")
        if kind not in _TEXT_PARTS:
            raise NotTokenisableError(f"it has a part of type {kind}")
        if text is not None:
            texts.append(text)
    return texts


def _call(said: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call with its arguments parsed; ones that are no JSON object count as none."""
    function = dict(said["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = None
    function["arguments"] = arguments if isinstance(arguments, dict) else {}
    return {**said, "function": function}


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for tool in tools:
        function = tool["function"]
        told = {name: function.get(name) for name in _FUNCTION_FIELDS}
        told |= {name: function[name] for name in _FURTHER_FIELDS if function.get(name) is not None}
        made.append({"type": tool.get("type", "function"), "function": told})
    return made
