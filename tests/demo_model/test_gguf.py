"""GGUF to MLX: the same numbers, the same tokens."""

from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model
from tiny_gguf import F16, HEAD_DIM, Q4_0, TEMPLATE, TOKENS, write_gguf

from mlx_skipspec.convert.gguf import gguf_to_mlx
from mlx_skipspec.errors import SkipSpecError

gguf = pytest.importorskip("gguf")
FOLDER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def numbers_in(path: Path) -> dict[str, np.ndarray]:
    """The file by the `gguf` package, under the folder's names; rows of q and k moved by a plain loop."""
    numbers = {}
    for tensor in gguf.GGUFReader(path).tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        stem = tensor.name.removesuffix(".weight")
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{FOLDER_NAMES[part]}"
            if part in ("attn_q", "attn_k"):
                pairs, weight = weight, np.empty_like(weight)
                for first in range(0, len(pairs), HEAD_DIM):
                    for i in range(HEAD_DIM // 2):
                        weight[first + i] = pairs[first + 2 * i]
                        weight[first + HEAD_DIM // 2 + i] = pairs[first + 2 * i + 1]
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[stem]
        numbers[f"{name}.weight"] = weight
    return numbers


@pytest.mark.parametrize("variant", [{}, {"untied": True}, {"matrices": Q4_0}], ids=["tied", "untied", "Q4_0"])
def test_dequantised_weights_equal_the_ggufs_to_the_bit(tmp_path, variant):
    path = write_gguf(tmp_path / "tiny.gguf", **variant)
    gguf_to_mlx(path, tmp_path / "out")
    model, _ = mlx_lm.load(str(tmp_path / "out"))
    weights, expected = dict(tree_flatten(dequantize_model(model).parameters())), numbers_in(path)
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        ours, theirs = np.array(weight), expected[name]
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
        if "matrices" not in variant:  # MLX's Q4_0 has one zero, the gguf package's has two
            np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32), err_msg=name)


def test_the_quantised_folder_computes_what_its_dequantised_weights_do(folder):
    tokens = mx.array([[1, 70, 80, 90, 2]])
    model, _ = mlx_lm.load(str(folder))
    packed = model(tokens)
    assert packed.dtype == mx.float32
    plain = dequantize_model(model)(tokens)
    assert mx.allclose(packed, plain, rtol=1e-3, atol=1e-3).item()


def test_the_tokenizer_splits_digits_one_by_one_and_loses_no_text(folder):
    _, tokenizer = mlx_lm.load(str(folder))
    encode, token_ids = tokenizer.encode, {token: i for i, token in enumerate(TOKENS)}
    assert encode("12 12") == [token_ids[t] for t in ("1", "2", "Ġ", "1", "2")]
    assert encode("ab ab") == [token_ids["ab"], token_ids["Ġab"]]
    assert encode("<|im_start|>a<|im_end|>") == [1, token_ids["a"], 2]
    for text in ("", "  a  12\n\n\tb\r\n", "Grüße 日本 👩‍👧 ½٣ \x00", "def f(x):\n    return 3.5e-7"):
        assert tokenizer.decode(encode(text)) == text


def test_the_chat_template_and_special_tokens_survive(folder):
    _, tokenizer = mlx_lm.load(str(folder))
    assert (folder / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\né  "
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.pad_token_id) == (1, {2}, 2)


@pytest.mark.parametrize(
    ("variant", "named"),
    [
        ({"arch": "qwen2"}, "'qwen2'"),
        ({"pre": "llama-bpe"}, "'llama-bpe'"),
        ({"matrices": F16}, "'blk.0.attn_k.weight'"),
        ({"scaling": gguf.RopeScalingType.YARN}, "RoPE"),
    ],
    ids=["architecture", "pre-tokenizer", "block format", "RoPE scaling"],
)
def test_what_cannot_be_carried_over_exactly_is_refused_by_name(tmp_path, variant, named):
    path = write_gguf(tmp_path / "tiny.gguf", **variant)
    with pytest.raises(SkipSpecError, match=rf"{named}.*; need .*instead"):
        gguf_to_mlx(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kept", [0, 10, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path, source, kept):
    whole = source.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(len(whole) * kept)])
    with pytest.raises(SkipSpecError, match=r"cut\.gguf.*fetch it again"):
        gguf_to_mlx(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
