"""The verbs: mlx-lm's text and fields, whoever drafts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import checkpoint
import mlx.core as mx
import mlx_lm
import pytest
from drafters import Liar, random_bridge
from loaded_twice import CHOICES, MAIN, MODES, PROMPT, TOKENS, model, text_of, tokens_of, whole
from mlx.utils import tree_flatten
from mlx_lm.generate import GenerationResponse
from mlx_lm.sample_utils import make_sampler

from mlx_skipspec import Sampler, SkipSpecError, generate, load, stream_generate
from mlx_skipspec.api import Response, encode
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.drafting import Drafting
from mlx_skipspec.loading import base_of


def test_a_response_has_every_field_of_mlx_lms_with_the_same_default() -> None:
    ours = {field.name: field.default for field in dataclasses.fields(Response)}
    theirs = {field.name: field.default for field in dataclasses.fields(GenerationResponse)}
    assert theirs.items() <= ours.items()
    assert list(ours)[: len(theirs)] == list(theirs)


@pytest.mark.parametrize(
    ("family", "choice"),
    [
        *(("llama", choice) for choice in CHOICES),
        ("mistral", "none"),
        ("mistral", "skip"),
        *(("qwen3", c) for c in MAIN),
    ],
)
def test_every_token_and_its_text_are_mlx_lms(family: str, choice: str) -> None:
    here = model(family)
    theirs = list(mlx_lm.stream_generate(here.theirs, here.their_tokenizer, PROMPT, max_tokens=TOKENS))
    ours = here.ask(drafting=here.drafting[choice])
    assert [(r.token, r.text, r.generation_tokens) for r in ours] == [
        (r.token, r.text, r.generation_tokens) for r in theirs
    ]
    assert [r.finish_reason for r in ours] == [r.finish_reason for r in theirs]
    assert ours[0].prompt_tokens == theirs[0].prompt_tokens
    assert all(mx.array_equal(a.logprobs, b.logprobs) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("choice", MAIN)
@pytest.mark.parametrize("kind", checkpoint.TOKENIZERS)
def test_generate_is_mlx_lms_generate_with_either_kind_of_tokenizer(kind: str, choice: str) -> None:
    here = model(kind=kind)
    theirs = mlx_lm.generate(here.theirs, here.their_tokenizer, PROMPT, max_tokens=TOKENS)
    assert generate(here.target, here.tokenizer, PROMPT, max_tokens=TOKENS, drafting=here.drafting[choice]) == theirs


@pytest.mark.parametrize("choice", ["none", "skip, bridged", "auto, bridged"])
@pytest.mark.parametrize("at", [0, 1, 13])
def test_the_token_that_ends_the_text_is_counted_and_not_shown_as_in_mlx_lm(choice: str, at: int) -> None:
    eos = whole()[at]
    here = model(eos=eos)
    theirs = list(mlx_lm.stream_generate(here.theirs, here.their_tokenizer, PROMPT, max_tokens=TOKENS))
    kv = here.target.make_kv()
    ours = here.ask(drafting=here.drafting[choice], kv=kv)
    assert tokens_of(ours)[-1] == eos
    assert len(ours) == ours[-1].generation_tokens == theirs[-1].generation_tokens == whole().index(eos) + 1
    assert (text_of(ours), ours[-1].finish_reason) == ("".join(r.text for r in theirs), "stop")
    assert kv.length == len(here.ids) + len(ours) - 1


@pytest.mark.parametrize("choice", CHOICES)
def test_the_mode_names_what_drafts_in_every_response(choice: str) -> None:
    here = model()
    answer = here.ask(drafting=here.drafting[choice])
    assert {response.mode for response in answer} == {MODES[choice]}
    sources = {"none": set(), "lookup": {"lookup"}, "skip": {"skip"}, "auto": {"lookup", "skip"}}[choice.split(",")[0]]
    assert {response.source for response in answer} - {None} <= sources
    stats = answer[-1].stats  # the pace may drop all that it lets the layers draft: its clock decides
    assert stats.drafted + stats.dropped.total() > 0 or "skip" not in sources


def test_the_guessed_tokens_are_marked_and_the_others_are_not() -> None:
    here = model()
    answer = here.ask(drafting=here.oracle(whole()), draft_tokens=3, max_tokens=10)
    assert [response.from_draft for response in answer] == [False, *[True, True, True, False] * 2, False]
    assert [response.source for response in answer] == [None, *["oracle"] * 8, None]


def test_without_a_drafter_no_token_is_marked() -> None:
    assert not any(response.from_draft or response.source for response in model().ask())


def test_a_wrong_guess_is_not_marked() -> None:
    here = model()
    liar = here.ask(drafting=Drafting(Liar(), "liar"))
    assert sum(r.from_draft for r in liar) == liar[-1].stats.from_draft < liar[-1].stats.drafted
    assert tokens_of(liar) == whole()


def test_a_held_back_beginning_of_a_stop_string_appears_when_the_tokens_run_out() -> None:
    here = model()
    plain = text_of(here.ask(max_tokens=9))
    answer = here.ask(max_tokens=9, stop=[plain[-1] + "and more", "never"])
    assert (text_of(answer), answer[-1].finish_reason) == (plain, "length")


@pytest.mark.parametrize("choice", MAIN)
@pytest.mark.parametrize("max_tokens", [-1, 60])
def test_the_context_limits_the_text_and_the_reason_is_length(choice: str, max_tokens: int) -> None:
    here = model(context=len(model().ids) + 20)
    answer = here.ask(max_tokens=max_tokens, drafting=here.drafting[choice])
    assert (len(answer), answer[-1].finish_reason) == (20, "length")
    assert tokens_of(answer) == whole()[:20]


def test_without_max_tokens_the_text_goes_on_to_its_end() -> None:
    eos = whole()[13]
    here = model(eos=eos)
    answer = here.ask(max_tokens=-1)
    assert (tokens_of(answer), answer[-1].finish_reason) == (whole()[: whole().index(eos) + 1], "stop")


@pytest.mark.parametrize("prompt", [list, tuple, mx.array], ids=lambda form: form.__name__)
def test_a_prompt_may_be_text_or_token_ids_of_any_form(prompt: Any) -> None:
    assert tokens_of(model().ask(prompt=prompt(model().ids))) == whole()


def test_the_beginning_of_sequence_is_not_doubled() -> None:
    tokenizer = model().tokenizer
    assert encode(tokenizer, "<s>hello") == encode(tokenizer, "hello")
    assert encode(tokenizer, "hello").count(checkpoint.BOS) == 1


@pytest.mark.parametrize("choice", MAIN)
@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.9, seed=3)], ids=["greedy", "T=0.9"])
def test_logprobs_are_those_the_token_was_chosen_from(choice: str, sampler: Sampler) -> None:
    here = model()
    answer = here.ask(drafting=here.drafting[choice], sampler=sampler)
    logits = here.theirs(mx.array([*here.ids, *tokens_of(answer)[:-1]])[None])[0, len(here.ids) - 1 :]
    want = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    assert mx.allclose(mx.stack([response.logprobs for response in answer]), want, atol=1e-4)
    if sampler.temperature == 0:
        assert [mx.argmax(response.logprobs).item() for response in answer] == tokens_of(answer)


@pytest.mark.parametrize("choice", ["skip, bridged", "auto"])
def test_a_sampled_text_is_the_same_whoever_drafts(choice: str) -> None:
    here = model()
    sampler = Sampler(temperature=1.0, top_p=0.9, seed=7, repetition_penalty=1.2)
    plain = tokens_of(here.ask(sampler=sampler))
    assert tokens_of(here.ask(sampler=sampler, drafting=here.drafting[choice])) == plain != whole()


def test_progress_is_heard_up_to_the_last_token_of_the_prompt() -> None:
    heard: list[tuple[int, int]] = []
    model().ask(prefill_step_size=4, prompt_progress_callback=lambda *seen: heard.append(seen))
    total = len(model().ids)
    assert heard == [*((n, total) for n in range(4, total - 1, 4)), (total - 1, total), (total, total)]


def test_figures_are_of_the_units_their_names_say() -> None:
    last = model().ask()[-1]
    assert last.prompt_tps == pytest.approx(last.prompt_tokens / last.prompt_seconds)
    assert last.generation_tps == pytest.approx(last.generation_tokens / last.generation_seconds)
    assert last.peak_memory == pytest.approx(mx.get_peak_memory() / 1e9)


def test_the_automatic_choice_finds_the_sidecar_inside_the_models_folder(tmp_path: Path) -> None:
    folder = checkpoint.write(tmp_path / "model")
    target, tokenizer = load(folder)
    assert next(stream_generate(target, tokenizer, PROMPT)).mode == "lookup"
    bridge = dict(tree_flatten(random_bridge(target.hidden_size).parameters()))
    Sidecar(base_of(target), 1, 2, bridge).save(folder / "skipspec")
    assert next(stream_generate(target, tokenizer, PROMPT)).mode == "lookup+skip(1,2)+hvc"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": []}, "prompt is empty"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": -2}, "max_tokens=-2"),
        ({"prompt": [1, 99999]}, "token id 99999"),
        ({"prompt": [1, -1]}, "token id -1"),
        ({"prompt": [5] * 4096}, "4096 tokens, the model's context 4096"),
        ({"max_kv_size": 4}, "need more than 4"),
        ({"kv_bits": 5}, "kv_bits=5"),
        ({"stop": [""]}, "stop string is empty"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SkipSpecError, match=message):
        model().ask(**options)


def test_a_sampler_of_mlx_lms_is_refused_because_it_does_not_know_the_position() -> None:
    here = model()
    with pytest.raises(SkipSpecError, match=r"need a mlx_skipspec\.Sampler"):
        next(stream_generate(here.target, here.tokenizer, PROMPT, sampler=make_sampler(0.5)))


def test_a_drafter_can_be_asked_for_by_name_and_verbose_prints_text_and_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = model()
    text = generate(here.target, here.tokenizer, PROMPT, max_tokens=TOKENS, drafting="none", verbose=True)
    shown = capsys.readouterr().out
    assert shown.startswith(text)
    assert "mode        none (float32)" in shown
