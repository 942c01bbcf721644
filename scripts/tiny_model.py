"""Make a tiny Llama with random weights, its tokenizer and, if asked for, a LoRA adapter, for a real vLLM on CPU.

    tiny_model.py FOLDER [--adapter FOLDER]

Runs in the real engine's own environment (torch, transformers, tokenizers, safetensors) and downloads nothing. Half a
megabyte, the same bytes for a seed and package versions. It speaks nonsense, varied enough that an answer from wrong KV
differs from the right one, and it ends no answer by itself: the end-of-turn token is made improbable.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

# These are in the real engine's environment, not in the project's.
import torch  # type: ignore[import-not-found]
from safetensors.torch import save_file  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]

SPECIALS = ["<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
_TEXT = (
    "the a and or but if then when while for with without from to of in on at by is are was were be been have has do did "
    "not no yes can could will would shall should may might must one two three four five six seven eight nine ten hundred "
    "time year day hour minute second people person system user assistant message question answer request response server "
    "client router cache block prefix token model engine queue cluster node pod service scale replica worker batch prefill "
    "decode stream event metric state store read write load save open close start stop run wait pause resume sleep wake "
    "water river mountain forest city street house garden window door table chair paper book light dark red green blue "
    "white black small large long short old new good bad fast slow north south east west summer winter morning evening "
    "music story letter word number line please explain describe summarize translate compare list hello world thanks help"
)
WORDS = _TEXT.split()
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
POSITIONS = 8192
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""A head of 32 is the smallest that the CPU attention takes."""


def sentences(seed: int, count: int = 6000) -> list[str]:
    """Return random sentences for the tokenizer to learn from."""
    chance = random.Random(seed)  # noqa: S311  (sentences, not secrets)
    made = []
    for _ in range(count):
        text = " ".join(chance.choice(WORDS) for _ in range(chance.randint(4, 14)))
        made.append(text.capitalize() + chance.choice(".?!;,:") + "\n")
    return made


def write_tokenizer(folder: Path, seed: int) -> int:
    """Write a byte-level BPE tokenizer and return the size of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        min_frequency=1,
        show_progress=False,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sentences(seed), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    specials = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **specials,
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", configuration)
    write_json(folder / "special_tokens_map.json", specials)
    return int(tokenizer.get_vocab_size())


def write_model(folder: Path, vocabulary: int, seed: int) -> None:
    """Write weights and config.json."""
    torch.manual_seed(seed)
    tokens = {"bos_token_id": 1, "eos_token_id": 4, "pad_token_id": 0}
    configuration = LlamaConfig(
        vocab_size=vocabulary,
        intermediate_size=128,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        initializer_range=0.6,  # large, so that a greedy answer depends on its prompt
        dtype="bfloat16",
        **SIZES,
        **tokens,
    )
    model = LlamaForCausalLM(configuration).to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight[: len(SPECIALS)].zero_()
    model.save_pretrained(folder, safe_serialization=True)
    write_json(folder / "generation_config.json", tokens)


def write_adapter(folder: Path, seed: int, rank: int = 8) -> None:
    """Write a random LoRA adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed + 1)
    heads = {"q_proj": SIZES["num_attention_heads"], "v_proj": SIZES["num_key_value_heads"]}
    tensors: dict[str, Any] = {}
    for layer in range(SIZES["num_hidden_layers"]):
        for name, count in heads.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            down = torch.randn(rank, SIZES["hidden_size"], generator=generator)
            up = torch.randn(count * SIZES["head_dim"], rank, generator=generator)
            tensors |= {f"{prefix}.lora_A.weight": down * 0.3, f"{prefix}.lora_B.weight": up * 0.3}
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    configuration = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(heads),
        "base_model_name_or_path": "tiny",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    write_json(folder / "adapter_config.json", configuration)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write one JSON file."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(given.folder, given.seed)
    write_model(given.folder, vocabulary, given.seed)
    if given.adapter:
        write_adapter(given.adapter, given.seed)
    print(f"{given.folder}: vocabulary of {vocabulary}")


if __name__ == "__main__":
    main()
