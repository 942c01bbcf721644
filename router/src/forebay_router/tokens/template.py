"""A model's chat template: messages to the text that the engine tokenises.

Templates are Jinja programs out of a model's files, so they run in Jinja's sandbox, with the few names that transformers gives
them and no others: `raise_exception`, `strftime_now`, a `tojson` that escapes nothing for HTML, the `generation` tag (which marks
what the model wrote and prints its contents), `break` and `continue`. Blocks are trimmed as transformers trims them.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
from jinja2.parser import Parser


class TemplateRefusedError(ValueError):
    """The template does not take these messages."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` prints what is inside."""

    tags: Final = {"generation"}  # type: ignore[misc]  # jinja2 declares a plain class variable

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by position as well
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateRefusedError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - engines use their local time


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = _now
    return made


_JINJA: Final = _environment()


def iterates_content(root: jinja2.nodes.Template) -> bool:
    """Whether a template goes through the parts of a message's content: `for part in message.content`, in a macro or not.

    Engines decide by the same reading of the program whether a template gets contents as lists of parts or as one text.
    """
    messages = {"messages"}
    assigned = True
    while assigned:
        assigned = False
        for one in root.find_all(jinja2.nodes.Assign):
            target = one.target
            if isinstance(target, jinja2.nodes.Name) and target.name not in messages and _reads(one.node, messages):
                messages.add(target.name)
                assigned = True
    loops = [one for one in root.find_all(jinja2.nodes.For) if isinstance(one.target, jinja2.nodes.Name)]
    message = {one.target.name for one in loops if _reads(one.iter, messages)}  # type: ignore[attr-defined]  # Name, see above
    if any(_reads(one.iter, message, key="content") for one in loops):
        return True
    macros = list(root.find_all(jinja2.nodes.Macro))
    within = {id(loop) for macro in macros for loop in macro.find_all(jinja2.nodes.For)}
    return any(_is_name(one.iter, {"content"}) and id(one) not in within for one in loops) or any(
        _is_name(loop.iter, _given_content(root, macro, message))
        for macro in macros
        for loop in macro.find_all(jinja2.nodes.For)
    )


def _is_name(node: jinja2.nodes.Node, names: set[str]) -> bool:
    return isinstance(node, jinja2.nodes.Name) and node.name in names


def _given_content(root: jinja2.nodes.Template, macro: jinja2.nodes.Macro, message: set[str]) -> set[str]:
    """Parameters of a macro that are given a message's content somewhere."""
    names = [argument.name for argument in macro.args]
    found = set()
    for call in root.find_all(jinja2.nodes.Call):
        if isinstance(call.node, jinja2.nodes.Name) and call.node.name == macro.name:
            by_position = zip(names, call.args, strict=False)
            by_name = [(one.key, one.value) for one in call.kwargs if one.key in names]
            found |= {name for name, value in (*by_position, *by_name) if _reads(value, message, key="content")}
    return found


def _reads(node: jinja2.nodes.Node | None, names: set[str], key: str | None = None) -> bool:
    """The node is one of these variables, or that key of one; also filtered, tested or sliced."""
    if isinstance(node, jinja2.nodes.Filter | jinja2.nodes.Test):
        return _reads(node.node, names, key)
    if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice):
        return _reads(node.node, names, key)
    if node is None:
        return False
    if key is None:
        return _is_name(node, names)
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == key and _reads(node.node, names)
    if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Const):
        return bool(node.arg.value == key) and _reads(node.node, names)
    return False


class ChatTemplate:
    """One template of one model."""

    def __init__(self, source: str, names: Mapping[str, Any]) -> None:
        """`names` are the special tokens that templates may print, such as bos_token; raises ValueError for no template."""
        try:
            self._template = _JINJA.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"not a chat template: {error}") from error
        self._names = dict(names)
        self.wants_parts = iterates_content(_JINJA.parse(source))
        """It goes through the parts of a message's content by itself; else it is given one text."""
        self.knows_developer = '"developer"' in source or "'developer'" in source

    def render(self, messages: Sequence[Mapping[str, Any]], **given: Any) -> str:
        """The text; raises TemplateRefusedError where the template does not take what it is given."""
        try:
            return self._template.render(messages=messages, **{**self._names, **given})
        except TemplateRefusedError:
            raise
        except Exception as error:  # templates are programs: they fail in any way
            raise TemplateRefusedError(repr(error)) from error
