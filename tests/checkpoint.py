"""A tiny random checkpoint as the hub has them, whole: weights, config, a real tokenizer with a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import tiny
from mlx.utils import tree_flatten
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
BOS, EOS = 0, 1
WORDS = "the then there any anything ab abc hello world token draft verify accept cache layer grün"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _merged(alphabet: list[str], words: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary and the merges that build every word from its left end."""
    tokens, merges = [*SPECIAL, *alphabet], []
    for word in words:
        for i in range(1, len(word)):
            if word[: i + 1] not in tokens:
                tokens.append(word[: i + 1])
                merges.append((word[:i], word[i]))
    return {token: i for i, token in enumerate(tokens)}, merges


def _finished(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's, Llama 3's and Qwen's: every byte is a token, a character may need several."""
    words = WORDS.replace("ü", "Ã¼").split()
    vocab, merges = _merged(sorted(pre_tokenizers.ByteLevel.alphabet()), [*(f"Ġ{word}" for word in words), *words])
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _finished(tokenizer)


def byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2's and Mistral's: characters that are not in the vocabulary come as bytes, a space as ▁."""
    letters = ["▁", *(chr(c) for c in range(33, 127)), "ü", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab, merges = _merged(letters, [f"▁{word}" for word in WORDS.split()])
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<s>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finished(tokenizer)


TOKENIZERS = {"byte level": byte_level, "byte fallback": byte_fallback}


def write(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    eos: int | list[int] = EOS,
    tokenizer: PreTrainedTokenizerFast | None = None,
    extra: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
    **changes: Any,
) -> Path:
    """Write a checkpoint of four layers; `extra` goes into config.json only, `without` stays out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or byte_level()
    changes = {"num_hidden_layers": 4, "vocab_size": len(tokenizer), **changes}
    model = tiny.target(family, seed, **changes).model
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "pt"})
    config = {
        **tiny.config(family, **changes),
        "eos_token_id": eos,
        "bos_token_id": BOS,
        "dtype": "float32",
        **(extra or {}),
    }
    config = {key: value for key, value in config.items() if key not in without}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "do_sample": False}))
    tokenizer.save_pretrained(folder)
    return folder
