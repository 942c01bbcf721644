"""Requests to the text that the engine tokenises."""

import pytest

from forebay_router.tokens.encoder import Memory
from forebay_router.tokens.folder import load
from forebay_router.tokens.prompts import NotTokenisableError, Prompt, prompt_of
from forebay_router.tokens.template import ChatTemplate
from tests.router.tokens.vocabulary import write_folder

TOOL = {"type": "function", "function": {"parameters": {"type": "object"}, "name": "look_up"}}
WRITTEN_TOOLS = (
    '[{"type": "function", "function": {"name": "look_up", "description": null, "parameters": {"type": "object"}}}]'
)
MACRO = "{% macro f(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return load(write_folder(tmp_path_factory.mktemp("model")), Memory(1 << 20))


def chat(*messages: dict, **fields) -> dict:
    return {"model": "m", "messages": list(messages), **fields}


def user(content) -> dict:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (chat(user("Hi")), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
        (
            chat({"role": "system", "content": "S"}, user([{"type": "text", "text": "a"}, "b"])),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n",
        ),
        (chat(user("Hi"), add_generation_prompt=False), "<|im_start|>user\nHi<|im_end|>\n"),
        (
            chat(user("Hi"), chat_template_kwargs={"add_generation_prompt": False}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            chat({"role": "assistant", "content": None}, add_generation_prompt=False),
            "<|im_start|>assistant\n<|im_end|>\n",
        ),
        (
            chat(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"é": 1}'}},
                        {"id": "2", "type": "function", "function": {"name": "f", "arguments": "not JSON"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "r"}]},
                add_generation_prompt=False,
            ),
            '<|im_start|>assistant\n{"é": 1}{}<|im_end|>\n<|im_start|>tool\nr<|im_end|>\n',
        ),
        (
            chat(user("Hi"), tools=[TOOL], add_generation_prompt=False),
            f"<|im_start|>tools\n{WRITTEN_TOOLS}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        ),
    ],
    ids=[
        "plain",
        "parts",
        "no generation prompt",
        "the request before the template's own",
        "no content",
        "tool calls",
        "tools",
    ],
)
def test_chats_are_written_by_the_template(tokens, fields, text):
    assert prompt_of(fields, tokens) == Prompt(text, framed=False)


def test_a_completion_is_its_text_and_gets_start_tokens(tokens):
    assert prompt_of({"prompt": "Hi"}, tokens) == prompt_of({"prompt": ["Hi"]}, tokens) == Prompt("Hi", framed=True)
    assert prompt_of({"prompt": "Hi", "add_special_tokens": False}, tokens) == Prompt("Hi", framed=False)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"prompt": "a", "truncate_prompt_tokens": 5},
        {"prompt": "a", "prompt_embeds": "x"},
        chat(user([{"type": "image_url", "image_url": {"url": "http://x"}}])),
        chat(user("a"), chat_template="{{ messages }}"),
        chat(user("a"), {"role": "assistant", "content": "b"}, continue_final_message=True),
        chat(user("a"), system="Anthropic's"),
        chat({"content": "no role"}),
        chat(user(5)),
        chat({"role": "developer", "content": "x"}),
        chat({"role": "system", "content": "x-anthropic-billing-header: cch=1\nrest"}),
        {"messages": "a"},
    ],
)
def test_what_only_the_engine_can_tokenise_is_left_to_it(tokens, fields):
    with pytest.raises(NotTokenisableError):
        prompt_of(fields, tokens)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", True),
        (
            "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content | list %}{{ p }}{% endfor %}{% endfor %}",
            True,
        ),
        ("{% for p in content %}{{ p }}{% endfor %}", True),
        (
            MACRO + "{% for m in messages %}{{ f(m.content) }}{% endfor %}",
            True,
        ),
        (
            MACRO + "{% for m in messages %}{{ f(m.tools) }}{% endfor %}",
            False,
        ),
    ],
)
def test_templates_that_go_through_parts_get_parts(source, parts):
    assert ChatTemplate(source, {}).wants_parts is parts


def test_a_template_that_wants_parts_gets_a_list(tmp_path):
    template = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    tokens = load(write_folder(tmp_path, template=template), Memory(1 << 20))
    assert prompt_of(chat(user("a"), user(["b", "c"])), tokens).text == "[a][b][c]"


def test_templates_have_the_names_of_transformers_and_no_more(tmp_path):
    template = (
        "{% generation %}{{ bos_token }}{% endgeneration %}{{ strftime_now('%Y')[:2] }}{{ {'<': 'é'} | tojson }}"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}"
    )
    tokens = load(write_folder(tmp_path, template=template), Memory(1 << 20))
    assert prompt_of(chat(user("a"), user("b")), tokens).text == '<|bos|>20{"<": "é"}user'
    for unsafe in (
        "{{ messages.__class__.__mro__ }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{% do messages.clear() %}",
    ):
        with pytest.raises(ValueError, match="template"):
            prompt_of(chat(user("a")), load(write_folder(tmp_path, template=unsafe), Memory(1 << 20)))


def test_a_template_for_tools_is_used_with_tools(tmp_path):
    template = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    tokens = load(write_folder(tmp_path, template=template), Memory(1 << 20))
    assert prompt_of(chat(user("a")), tokens).text == "plain"
    assert prompt_of(chat(user("a"), tools=[TOOL]), tokens).text == "tools"


def test_a_template_file_goes_before_the_configuration(tmp_path):
    (write_folder(tmp_path) / "chat_template.jinja").write_text("from the file")
    assert prompt_of(chat(user("a")), load(tmp_path, Memory(1 << 20))).text == "from the file"


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        load(tmp_path, Memory(1))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no usable tokenizer"):
        load(tmp_path, Memory(1))
