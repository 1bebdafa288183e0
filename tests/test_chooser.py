"""Another drafter or another temperature in the middle of a conversation: what was learned goes on."""

from __future__ import annotations

from typing import Any

import pytest
from chatting import model
from drafters import CHEAP, ticks

from mlx_skipspec import SkipSpecError, drafting
from mlx_skipspec.chooser import Chooser
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.pace import Paced
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.sources import Looking


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> tuple[Conversation, Chooser]:
    def paced(*args: Any, **options: Any) -> Paced:
        return Paced(*args, CHEAP, clock=ticks(), explain=options["explain"])

    monkeypatch.setattr(drafting, "Paced", paced)
    target, tokenizer = model()
    chooser = Chooser(target, plan="2,2")
    talk = Conversation(target, tokenizer, choose=chooser("auto"), max_tokens=30)
    list(talk.ask("hello world hello world"))
    return talk, chooser


def pace(talk: Conversation) -> Paced:
    assert isinstance(talk.drafting.drafter, Paced)
    return talk.drafting.drafter


def learned(pace: Paced) -> list[Any]:
    """Objects that hold what was learned."""
    lookup, skip = (choice.source for choice in pace._choices)
    assert isinstance(skip, Looking)
    assert lookup is not None
    extras = [choice.extra for choice in pace._choices]
    return [pace._slower, *extras, lookup.drafter, lookup.acceptance, skip.acceptance, skip.by_probability, skip._came]


@pytest.mark.parametrize("between", [[], ["none"], ["lookup", "none"]])
def test_what_was_learned_of_machine_and_text_goes_on(talk: tuple[Conversation, Chooser], between: list[str]) -> None:
    here, chooser = talk
    before = learned(pace(here))
    for name in [*between, "auto"]:
        here.decide(Sampler(temperature=0.8), chooser(name))
    assert all(now is then for now, then in zip(learned(pace(here)), before, strict=True))


def test_drafts_are_drawn_as_the_answer_is(talk: tuple[Conversation, Chooser]) -> None:
    here, _ = talk
    warm = Sampler(temperature=0.8, seed=3)
    here.decide(warm)
    assert here.sampler == warm
    skip: Any = pace(here).drafters[1]
    assert skip.sampler == warm


def test_layers_are_for_those_who_use_them(talk: tuple[Conversation, Chooser]) -> None:
    here, chooser = talk
    for name, mode in (("lookup", "lookup"), ("none", "none"), ("skip", "skip(2,2)"), ("auto", "lookup+skip(2,2)")):
        here.decide(GREEDY, chooser(name))
        assert here.drafting.mode == mode


def test_a_drafter_that_cannot_be_had_changes_nothing() -> None:
    target, tokenizer = model()
    chooser = Chooser(target)
    here = Conversation(target, tokenizer, choose=chooser("none"), max_tokens=3)
    with pytest.raises(SkipSpecError, match="need --sidecar DIR or --plan"):
        here.decide(GREEDY, chooser("skip"))
    here.decide(Sampler(temperature=0.7))
    assert here.drafting.mode == "none"
