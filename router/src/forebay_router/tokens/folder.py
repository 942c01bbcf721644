"""One model's tokenizer files, as they lie beside its weights.

- `tokenizer.json`: the tokenizer; needed.
- `chat_template.jinja`: the chat template; else `chat_template` in `tokenizer_config.json`. Without one chats are not tokenised.
- `tokenizer_config.json`, in older models also `special_tokens_map.json`: names of special tokens, which templates print.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from forebay_router.tokens.encoder import Encoder, Memory
from forebay_router.tokens.template import ChatTemplate

_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT: Final = "default"
WITH_TOOLS: Final = "tool_use"


@dataclass(slots=True)
class ModelTokens:
    """What turns one model's requests into tokens."""

    encoder: Encoder
    templates: Mapping[str, ChatTemplate]
    """By name; most models have one, `default`."""

    def template(self, *, tools: bool) -> ChatTemplate | None:
        """The template for a chat."""
        if tools and WITH_TOOLS in self.templates:
            return self.templates[WITH_TOOLS]
        return self.templates.get(DEFAULT)


def load(folder: Path, memory: Memory) -> ModelTokens:
    """Read a folder; raises ValueError, which names the file and the fix."""
    definition = folder / "tokenizer.json"
    if not definition.is_file():
        raise ValueError(f"{definition} is missing; give the folder with the model's tokenizer files")
    try:
        encoder = Encoder(definition.read_text(encoding="utf-8"), memory)
        config = _json(folder / "tokenizer_config.json")
        names = _special_tokens({**_json(folder / "special_tokens_map.json"), **config})
        templates = {name: ChatTemplate(text, names) for name, text in _templates(folder, config).items()}
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} has no usable tokenizer: {error}") from error
    return ModelTokens(encoder, templates)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = orjson.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens by name; one may be given with its options."""
    found = {}
    for name in _SPECIAL:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {DEFAULT: file.read_text(encoding="utf-8")}
    told = config.get("chat_template")
    if isinstance(told, str):
        return {DEFAULT: told}
    if isinstance(told, list):
        return {
            one["name"]: one["template"] for one in told if isinstance(one, dict) and {"name", "template"} <= one.keys()
        }
    return {}
