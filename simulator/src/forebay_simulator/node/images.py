"""The table of images: which local program stands for a container image.

    images:
      - image: vllm/vllm-openai        # a glob, matched with and without registry and tag
        entrypoint: [vllm, serve]      # used when the container has no command
        arguments: []                  # used when the container has neither command nor args
        programs:                      # first word of the command -> what runs instead
          vllm: ["{python}", -m, forebay_simulator.engine]
        environment: {FOREBAY_SIM_ACCELERATOR: "{accelerator}"}
        pullSeconds: 0                 # how long getting the image takes, the first time on a node

The first match counts. Words in braces are replaced by the node's values; `{python}` is the interpreter that runs the
agent, `{bin}` its folder. An image that matches nothing can't be "pulled".
"""

import fnmatch
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from forebay_simulator.node.errors import ImageUnknownError, SettingsError

_FIELDS = {"image", "entrypoint", "arguments", "programs", "environment", "pullSeconds"}
_DEFAULT_TABLE = "images.yaml"


@dataclass(frozen=True, slots=True)
class Image:
    """One entry."""

    pattern: str
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pull_s: float = 0.0

    def matches(self, reference: str) -> bool:
        """Whether the entry stands for an image reference."""
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in _names(reference))

    def command(self, container: Mapping[str, Any]) -> list[str]:
        """The command line of a container, before `$(NAME)` is replaced."""
        command = list(container.get("command") or ())
        arguments = list(container.get("args") or ())
        if not command:
            command = list(self.entrypoint)
            arguments = arguments or list(self.arguments)
        return [*command, *arguments]

    def program(self, argv: Sequence[str]) -> list[str]:
        """`argv` with its first word replaced by the local program."""
        return [*self.programs.get(argv[0], (argv[0],)), *argv[1:]]


def _names(reference: str) -> tuple[str, ...]:
    """The reference, without tag and digest, and without its registry."""
    bare = reference.split("@", 1)[0]
    head, slash, last = bare.rpartition("/")
    bare = head + slash + last.split(":", 1)[0]
    first, slash, rest = bare.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    short = (rest if has_registry else bare).removeprefix("library/")
    return (reference, bare, short)


@dataclass(frozen=True, slots=True)
class ImageTable:
    """All entries, in order."""

    images: tuple[Image, ...]

    def find(self, reference: str) -> Image:
        """The entry for an image. Raises ImageUnknownError."""
        for image in self.images:
            if image.matches(reference):
                return image
        raise ImageUnknownError(reference)


def load_table(path: Path | None, placeholders: Mapping[str, str]) -> ImageTable:
    """Read a table; without a path the packaged one. Raises SettingsError that names the entry and field."""
    where = str(path) if path else _DEFAULT_TABLE
    try:
        if path:
            text = path.read_text(encoding="utf-8")
        else:
            text = importlib.resources.files(__package__).joinpath(_DEFAULT_TABLE).read_text(encoding="utf-8")
        document = yaml.safe_load(text)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config {where}: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("images"), list):
        raise SettingsError(f"--config {where}: images must be a list of entries")
    return ImageTable(
        tuple(
            _parse_image(item, f"--config {where}: images[{index}]", placeholders)
            for index, item in enumerate(document["images"])
        )
    )


def _parse_image(item: Any, where: str, placeholders: Mapping[str, str]) -> Image:
    if not isinstance(item, dict) or not isinstance(item.get("image"), str):
        raise SettingsError(f"{where}.image must be a name or a glob such as vllm/vllm-openai")
    if unknown := set(item) - _FIELDS:
        raise SettingsError(f"{where}: unknown {', '.join(sorted(unknown))}; known are {', '.join(sorted(_FIELDS))}")
    programs = _mapping(item, "programs", where)
    return Image(
        pattern=item["image"],
        entrypoint=_words(item.get("entrypoint", []), f"{where}.entrypoint", placeholders),
        arguments=_words(item.get("arguments", []), f"{where}.arguments", placeholders),
        programs={name: _words(words, f"{where}.programs.{name}", placeholders) for name, words in programs.items()},
        environment={
            name: _filled(str(value), placeholders) for name, value in _mapping(item, "environment", where).items()
        },
        pull_s=_seconds(item.get("pullSeconds", 0), f"{where}.pullSeconds"),
    )


def _mapping(item: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    value = item.get(name) or {}
    if not isinstance(value, dict):
        raise SettingsError(f"{where}.{name} must be a mapping")
    return value


def _words(value: Any, where: str, placeholders: Mapping[str, str]) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise SettingsError(f"{where} must be a list of words")
    return tuple(_filled(str(word), placeholders) for word in value)


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise SettingsError(f"{where} must be a number of seconds, 0 or more")
    return float(value)


def _filled(text: str, placeholders: Mapping[str, str]) -> str:
    for name, value in placeholders.items():
        text = text.replace("{" + name + "}", value)
    return text
