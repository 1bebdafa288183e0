"""Writes a tiny GGUF, as the demo model's."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

gguf = pytest.importorskip("gguf")
DIM, HEADS, KV_HEADS, HEAD_DIM, MLP, LAYERS = 64, 4, 2, 16, 96, 2
Q4_0, Q4_1, Q8_0, F16 = (gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q8_0", "F16"))
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGED = ["12", "Ġ1", "ab", "Ġab"]  # the first two can only appear where digits are not split off
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *MERGED]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}é  "
SHAPES = {
    "attn_norm": (DIM,),
    "attn_q": (HEADS * HEAD_DIM, DIM),
    "attn_k": (KV_HEADS * HEAD_DIM, DIM),
    "attn_v": (KV_HEADS * HEAD_DIM, DIM),
    "attn_output": (DIM, HEADS * HEAD_DIM),
    "ffn_norm": (DIM,),
    "ffn_gate": (MLP, DIM),
    "ffn_up": (MLP, DIM),
    "ffn_down": (DIM, MLP),
}


def write_gguf(path: Path, arch="llama", pre="smollm", matrices=Q4_1, untied=False, scaling=None) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    if scaling:
        writer.add_rope_scaling_type(scaling)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(["1 2", "Ġ 1", "a b", "Ġ ab"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)

    rng = np.random.default_rng(0)

    def add(name: str, shape: tuple[int, ...], kind) -> None:
        values = rng.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", (len(TOKENS), DIM), Q8_0)
    add("output_norm.weight", (DIM,), None)
    if untied:
        add("output.weight", (len(TOKENS), DIM), Q8_0)
    for layer in range(LAYERS):
        for name, shape in SHAPES.items():
            add(f"blk.{layer}.{name}.weight", shape, matrices)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
