"""A small tokenizer of the kind that models have, trained on the spot."""

import json
from functools import cache
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = "the router sends each request to worker that will answer it soon mostly holds its prefix in cache block token"
WORDS = TEXT.split()


@cache
def definition(kind: str = "gpt-2") -> str:
    """A tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = {
        "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
        "llama-3": lambda: pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        "prefix space": lambda: pre_tokenizers.ByteLevel(add_prefix_space=True),
        "unbounded words": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    }[kind]()
    if kind == "llama-3":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        show_progress=False,
        special_tokens=["<|bos|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    rng = Random(1)
    tokenizer.train_from_iterator([text_of(12, rng) + ". " for _ in range(400)], trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    if kind == "llama-3":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
        )
    return tokenizer.to_str()


def text_of(words: int, rng: Random) -> str:
    """Some words."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


def write_folder(folder: Path, kind: str = "gpt-2", template: str = TEMPLATE) -> Path:
    """Tokenizer files as they lie beside a model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(definition(kind))
    config = {"chat_template": template, "bos_token": {"content": "<|bos|>"}, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
