"""A kept cache answers as a fresh one does, whatever happened before, and only what is new is prefilled."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from typing import Any

import checkpoint
import pytest
import tiny
from chatting import CACHES, Checked, drafting, model
from test_rendering import OPENS

from mlx_skipspec import SkipSpecError, layer_kv
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.messages import Message
from mlx_skipspec.prompts import chat_ids
from mlx_skipspec.sampling import Sampler

GREEDY, WARM = Sampler(), Sampler(temperature=0.9, seed=5, repetition_penalty=1.2)
KINDS = list(itertools.product(tiny.FAMILIES, CACHES))
GUESSERS = ["gap+hvc", "paced", "liar"]
TURNS = ["ask", "ask", "ask", "interrupt", "interrupt", "break off", "retry", "retry", "undo", "undo", "undo"]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings that drop what nobody sees soon, so that short conversations get to it."""
    monkeypatch.setattr(layer_kv, "STEP", 16)
    monkeypatch.setattr(layer_kv, "RESERVE", 16)


def checked(family: str = "llama", cache: str = "growing", drafter: str = "paced", **options: Any) -> Checked:
    return Checked(family, cache, drafter, options.pop("sampler", GREEDY), **options)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(("family", "cache"), KINDS)
def test_after_any_conversation_the_kept_cache_answers_as_a_fresh_one(family: str, cache: str) -> None:
    at = KINDS.index((family, cache))
    dice = random.Random(at)
    sampler = (GREEDY, WARM)[at % 2]
    here = checked(family, cache, GUESSERS[(at // 3 + at) % 3], sampler=sampler, stop=["the", "a", "gr"])
    for what in dice.sample(TURNS, len(TURNS)):
        here.turn(what, dice)
    here.turn("ask", dice)


@pytest.mark.slow
@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(("family", "cache"), KINDS)
@pytest.mark.parametrize("drafter", [*GUESSERS, "none", "lookup", "first-of", "early exit"])
@pytest.mark.parametrize("seed", range(3))
def test_after_any_long_conversation_too(family: str, cache: str, drafter: str, seed: int) -> None:
    dice = random.Random(seed)
    here = checked(family, cache, drafter, sampler=(GREEDY, WARM)[seed % 2], stop=["the", "a", "gr"])
    for what in dice.choices(TURNS, k=30):
        here.turn(what, dice)


WINDOWED = {
    "mistral": {"sliding_window": 18},
    "qwen3": {"sliding_window": 18, "use_sliding_window": True, "max_window_layers": 3},  # the other layers see all
}


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize(
    ("family", "cache", "changes"),
    [*((family, "ring", None) for family in tiny.FAMILIES), *((f, "growing", WINDOWED[f]) for f in WINDOWED)],
    ids=lambda value: "windowed" if isinstance(value, dict) else None,
)
def test_a_window_that_has_forgotten_the_question_still_goes_back_to_it(
    family: str, cache: str, changes: dict[str, Any] | None
) -> None:
    here = checked(family, cache, eos=(checkpoint.EOS,), max_tokens=64, changes=changes)
    here.listen(here.talk.ask("hello"))
    here.listen(here.talk.ask("the draft"))
    assert here.talk.kept.kv.earliest > here.talk.kept.marks[-1][0]  # rewinding alone would not do
    question = here.talk.kept.prefilled
    for _ in range(2):
        here.listen(here.talk.retry())
        assert here.talk.kept.prefilled == question
    here.talk.undo()
    here.listen(here.talk.ask("the cache"))
    assert here.talk.kept.prefilled <= question


def test_the_first_prompt_is_what_generate_makes_of_it() -> None:
    here = checked(system="be grün")
    here.talk.messages.append(Message("user", "hello world"))
    assert here.talk.rendering.ids(here.talk.all_messages) == chat_ids(here.tokenizer, "hello world", "be grün")


def test_generated_tokens_are_kept_though_their_text_would_give_others() -> None:
    here = checked(drafter="none")
    here.listen(here.talk.ask("hello"))
    answer = here.talk.messages[-1]
    ids = tuple(here.tokenizer.encode("w", add_special_tokens=False) + here.tokenizer.encode("orld"[0:]))[:5]
    assert here.tokenizer.encode("world", add_special_tokens=False) != list(ids)
    here.talk.messages[-1] = Message("assistant", "world", ids=ids, after=answer.after)
    here.listen(here.talk.ask("well"))
    at = len(here.talk.rendering.ids(here.talk.all_messages[:1]))
    assert here.talk.kept.held[at : at + len(ids)] == list(ids)


@pytest.mark.parametrize("given", [0, 1, 4])
def test_an_interrupted_answer_stays_as_far_as_it_was_given_and_one_never_begun_takes_its_question_back(
    given: int,
) -> None:
    here = checked()
    here.listen(here.talk.ask("hello"))
    before = list(here.talk.messages)
    if given:
        tokens = here.listen(here.talk.ask("the draft"), given)
        assert len(here.talk.messages) == len(before) + 2
        assert list(here.talk.messages[-1].ids or ()) == tokens
        assert here.talk.messages[-1].content == here.talk.rendering.decode(tokens)
    else:
        here.break_off("the draft")
    here.listen(here.talk.ask("and then"))


def test_a_stop_string_is_part_of_neither_the_message_nor_the_context() -> None:
    plain = checked()
    plain.listen(plain.talk.ask("hello"))
    text = plain.talk.messages[-1].content
    stop = text[4:6]
    here = checked(stop=[stop])
    here.listen(here.talk.ask("hello"))
    answer = here.talk.messages[-1]
    assert answer.content == text.split(stop)[0]
    assert here.talk.rendering.decode(answer.ids or ()) == answer.content
    here.listen(here.talk.ask("and then"))


def test_thoughts_the_template_drops_leave_the_cache_up_to_them() -> None:
    here = checked(eos=(checkpoint.EOS,), changes={"template": OPENS, "think": True}, system="be kind " * 4)
    before: list[int] = []
    for question in ("hello", "world", "the draft"):
        here.listen(here.talk.ask(question))
        assert here.talk.messages[-1].thoughts
        ids = here.talk.rendering.ids(here.talk.all_messages[:-1])
        assert len(ids) - here.talk.kept.prefilled >= len(before) - len(here.talk.rendering.encode("<think>\n"))
        before = ids


def test_the_token_that_ends_an_answer_is_the_templates_from_then_on() -> None:
    here = checked(max_tokens=200)
    tokens = here.listen(here.talk.ask("hello"))
    assert tokens[-1] in here.tokenizer.eos_token_ids
    assert (here.talk.messages[-1].ids or ())[-1] == tokens[-2]


def test_what_cannot_be_taken_back_or_tried_again_is_refused() -> None:
    here = checked()
    for action in (here.talk.undo, here.talk.retry):
        with pytest.raises(SkipSpecError, match=r"nothing to take back|no question"):
            action()


def test_a_question_without_an_answer_is_answered_by_retry_and_replaced_by_another() -> None:
    here = checked()
    asked = [Message("system", "be kind"), Message("user", "hello")]
    here.talk.restart(asked)
    assert here.talk.all_messages == asked
    here.listen(here.talk.ask("the draft"))
    assert [m.content for m in here.talk.all_messages[:-1]] == ["be kind", "the draft"]
    here.talk.restart(asked)
    here.listen(here.talk.retry())
    assert [m.content for m in here.talk.all_messages[:-1]] == ["be kind", "hello"]


def test_the_oldest_turns_go_out_of_view_when_the_context_is_full_with_one_notice() -> None:
    target, tokenizer = model(max_position_embeddings=120)
    heard: list[str] = []
    talk = Conversation(
        target, tokenizer, choose=drafting(target, "none"), system="hm", max_tokens=9, notify=heard.append
    )
    prompts = []
    for i in range(14):
        for response in talk.ask(f"hello {i}"):
            prompts.append(response.prompt_tokens)
    assert len(talk.messages) == 28  # the file still has them all
    assert 2 <= len(heard) < 7
    assert all("120 tokens is full" in line for line in heard)
    assert max(prompts) <= 120 - 30
    assert tokenizer.decode(talk.kept.held).count("hm") == 1
    said, seen = len(heard), talk.rendering.ids(talk.messages[talk._out_of_view :])
    with pytest.raises(SkipSpecError, match="the model's context 120"):
        next(talk.ask("x" * 200))
    assert len(talk.messages) == 28
    assert talk.rendering.ids(talk.messages[talk._out_of_view :]) == seen
    assert len(heard) == said


def test_a_ring_has_no_context_to_fill() -> None:
    target, tokenizer = model(max_position_embeddings=120)
    heard: list[str] = []
    talk = Conversation(
        target, tokenizer, choose=drafting(target, "none"), max_kv_size=40, max_tokens=9, notify=heard.append
    )
    for i in range(12):
        with closing(talk.ask(f"hello {i}")) as answer:
            list(answer)
    assert not heard
    assert talk.kept.kv.length > 130


def test_drafting_goes_on_over_turns_as_in_one_text() -> None:
    """What the drafter has read and r are there: it guesses what it would have guessed after a fresh prefill."""
    here = checked(drafter="gap+hvc", max_tokens=30)
    here.listen(here.talk.ask("hello world"))
    kept = list(here.talk.ask("hello world"))
    here.talk.undo()
    fresh = Checked("llama", "growing", "gap+hvc", GREEDY, max_tokens=30).talk
    fresh.messages = list(here.talk.messages)
    again = list(fresh.ask("hello world"))
    assert fresh.kept.prefilled > here.talk.kept.prefilled
    assert [(r.token, r.from_draft) for r in again] == [(r.token, r.from_draft) for r in kept]
    assert kept[-1].stats.rounds == again[-1].stats.rounds
