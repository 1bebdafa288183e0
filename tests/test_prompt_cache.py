"""The cache of a prompt's beginning in a file: good where it belongs, refused elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import tiny
from chatting import CACHES, drafting, model

from mlx_skipspec import SkipSpecError, stream_generate
from mlx_skipspec.api import encode
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.loading import load_target
from mlx_skipspec.prompt_cache import PromptCache, beginning, fill
from mlx_skipspec.prompt_cache_files import check_cache_file, load, save
from mlx_skipspec.prompts import chat_ids
from mlx_skipspec.sampling import GREEDY
from mlx_skipspec.target import Target

SYSTEM, PROMPT = "be grün " * 6, "the draft and then "


def empty(target: Target, cache: str = "growing") -> Any:
    size, bits, group_size = ({"max_kv_size": None, "kv_bits": None, "kv_group_size": 64} | CACHES[cache]).values()
    return lambda: target.make_kv(size, bits, group_size, exact=True)


def write(file: Path, family: str = "llama", cache: str = "growing", **changes: Any) -> tuple[Target, Any]:
    target, tokenizer = model(family, **changes)
    ids = beginning(lambda text: chat_ids(tokenizer, text, SYSTEM), PROMPT)
    save(fill(target, ids, empty(target, cache)(), 16, system=SYSTEM, prompt=PROMPT), target, file)
    return target, tokenizer


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("cache", CACHES)
def test_an_answer_on_it_is_the_one_after_a_fresh_prefill_with_drafting_too(
    family: str, cache: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.safetensors"
    target, tokenizer = write(file, family, cache)
    ids = chat_ids(tokenizer, PROMPT + "hello", SYSTEM)
    answers = []
    for drafter in ("none", "gap+hvc", "paced"):
        kept = load(file, target, empty(target, cache))
        assert (kept.system, kept.prompt) == (SYSTEM, PROMPT)
        assert list(kept.ids) == ids[: len(kept.ids)]
        assert len(kept.ids) > 40  # so the ring has wrapped
        for kv in (kept.begin(ids), empty(target, cache)()):
            made = drafting(target, drafter)(GREEDY)
            answer = stream_generate(target, tokenizer, ids, 20, drafting=made, kv=kv)
            answers.append([response.token for response in answer])
    assert all(answer == answers[0] for answer in answers)


def test_a_conversation_begins_with_it(tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    target, tokenizer = write(file)
    cache = load(file, target, empty(target))
    talk = Conversation(target, tokenizer, choose=drafting(target, "none"), cache=cache, max_tokens=5)
    held = len(cache.ids)
    list(talk.ask("hello"))
    assert [m.content for m in talk.all_messages[:2]] == [SYSTEM, PROMPT + "hello"]
    whole = chat_ids(tokenizer, PROMPT + "hello", SYSTEM)
    assert talk.kept.prefilled == len(whole) - held
    assert talk.kept.held[: len(whole)] == whole
    list(talk.ask("world"))
    assert talk.messages[2].content == "world"


def test_bare_text_has_one_too(tmp_path: Path) -> None:
    target, tokenizer = model()
    ids = beginning(lambda text: encode(tokenizer, text), "hello world, the")
    made = fill(target, ids, empty(target)())
    assert made.begin(encode(tokenizer, "hello world, the draft")).length == len(ids)
    with pytest.raises(SkipSpecError, match="does not begin as the prompt cache does"):
        fill(target, ids, empty(target)()).begin([9, 9, 9])


def test_a_beginning_of_which_nothing_stays_is_refused() -> None:
    with pytest.raises(SkipSpecError, match="nothing to keep"):
        beginning(lambda text: [len(text), ord(text[-1])], "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 3}, "rows of the model"),
        ({"rope_theta": 20000.0}, "rows of the model"),
        ({"cache": "ring"}, "the first 4 and the newest 36 rows"),
        ({"cache": "quantised"}, "all rows in 8 bits, groups of 32"),
    ],
    ids=str,
)
def test_it_is_refused_where_it_does_not_belong(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    write(file)
    cache = change.pop("cache", "growing")
    target, _ = model(**change)
    with pytest.raises(SkipSpecError, match=message):
        load(file, target, empty(target, cache))


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    file, folder = tmp_path / "c.safetensors", tmp_path / "model"
    import checkpoint

    checkpoint.write(folder)
    narrow, wide = load_target(folder, "bfloat16"), load_target(folder, "float32")
    save(fill(narrow, [5, 6, 7], empty(narrow)()), narrow, file)
    assert load(file, narrow, empty(narrow)).ids == (5, 6, 7)
    with pytest.raises(SkipSpecError, match="need the same model, dtype"):
        load(file, wide, empty(wide))


def damaged(kind: str, file: Path) -> None:
    loaded: Any = mx.load(str(file), return_metadata=True)
    tensors, metadata = loaded
    about = json.loads(metadata["about"])
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:-100])
        return
    if kind == "ids":
        tensors["ids"] = tensors["ids"] + 100_000
    elif kind == "fewer ids":
        tensors["ids"] = tensors["ids"][:-1]
    elif kind == "rows":
        tensors["rows.0.0"] = tensors["rows.0.0"][..., :-1, :]
    elif kind == "layer":
        del tensors["rows.5.0"], tensors["rows.5.1"]
    elif kind == "forgotten":
        about["layers"][0][1] = -1
    elif kind == "about":
        del about["layers"]
    mx.save_safetensors(str(file), tensors, {"format": metadata["format"], "about": json.dumps(about)})


@pytest.mark.parametrize("kind", ["cut", "ids", "fewer ids", "rows", "layer", "forgotten", "about"])
def test_a_damaged_file_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    target, _ = write(file)
    damaged(kind, file)
    with pytest.raises(SkipSpecError, match=r"is damaged|cannot be read"):
        load(file, target, empty(target))


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    target, _ = model()
    mx.save_safetensors(str(file), {"a": mx.zeros(3)})
    with pytest.raises(SkipSpecError, match="no prompt cache of this version"):
        load(file, target, empty(target))
    with pytest.raises(SkipSpecError, match="cannot be read"):
        load(tmp_path / "missing.safetensors", target, empty(target))


def test_a_write_that_fails_leaves_nothing_behind_and_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.safetensors"
    target, _ = write(file)
    before = file.read_bytes()

    def full(path: str, *_: Any) -> None:
        Path(path).write_bytes(b"half")
        raise RuntimeError("No space left on device")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(SkipSpecError, match="No space left"):
        save(PromptCache((5,), empty(target)()), target, file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_name_nothing_can_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    check_cache_file(tmp_path / "c.safetensors")
    for file in (tmp_path / "c.bin", tmp_path / "no" / "c.safetensors"):
        with pytest.raises(SkipSpecError, match=r"ends in \.safetensors"):
            check_cache_file(file)
