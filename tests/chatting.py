"""A tiny model to talk with, and a conversation that is checked turn by turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import checkpoint
import pytest
from drafters import DRAFTERS

from mlx_skipspec import load, stream_generate
from mlx_skipspec.api import Response
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.decode import agree
from mlx_skipspec.drafting import Drafting
from mlx_skipspec.sampling import Sampler
from mlx_skipspec.target import Target

# Several tokens end a text, so that some of a random model's answers do; the template writes another one than most.
EOS = (checkpoint.EOS, *range(40, 46), *range(90, 96))
CACHES: dict[str, dict[str, int]] = {
    "growing": {},
    "ring": {"max_kv_size": 40},
    "quantised": {"kv_bits": 8, "kv_group_size": 32},
}
WORDS = ["hello", "world", "the", "draft", "then", "anything", "cache", "layer", "grün", "token", "accept"]


@cache
def model(
    family: str = "llama",
    kind: str = "byte level",
    template: str = checkpoint.TEMPLATE,
    eos: tuple[int, ...] = EOS,
    think: bool = False,
    **changes: Any,
) -> Any:
    """Target and tokenizer, which knows the tags of thoughts if it is to `think`; "none" for no template."""
    tokenizer = checkpoint.TOKENIZERS[kind]()
    tokenizer.chat_template = template if template != "none" else None
    if think:
        tokenizer.add_tokens(["<think>", "</think>"])
    with TemporaryDirectory() as folder:
        changes = {"num_hidden_layers": 6, **changes}
        checkpoint.write(Path(folder), family, tokenizer=tokenizer, eos=list(eos), **changes)
        return load(folder)


def drafting(target: Target, name: str) -> Callable[[Sampler], Drafting]:
    return lambda sampler: Drafting(DRAFTERS[name](target, sampler, ()), name)


class Script:
    """A person who says these lines; an exception is raised where it stands."""

    def __init__(self, *lines: Any, interactive: bool = True) -> None:
        self.lines, self.interactive = list(lines), interactive

    def line(self, continued: bool = False) -> str | None:
        line = self.lines.pop(0) if self.lines else None
        if isinstance(line, BaseException):
            raise line
        if callable(line):
            line()
            return self.line()
        return line


class Checked:
    """A conversation whose every answer is compared with that after a fresh prefill of the same ids."""

    def __init__(
        self,
        family: str,
        cache: str,
        drafter: str,
        sampler: Sampler,
        eos: tuple[int, ...] = EOS,
        changes: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.target, self.tokenizer = model(family, eos=eos, **(changes or {}))
        self.fresh = {"max_kv_size": None, "kv_bits": None, "kv_group_size": 64} | CACHES[cache]
        self.talk = Conversation(
            self.target,
            self.tokenizer,
            choose=drafting(self.target, drafter),
            sampler=sampler,
            **CACHES[cache],
            **{"max_tokens": 14, **options},
        )

    def listen(self, answer: Iterator[Response], given: int = -1) -> list[int]:
        """Take an answer, or its first `given` tokens, and check them and what was prefilled for them."""
        held, tokens = list(self.talk.kept.held), []
        reach = [self.talk.kept.kv.earliest, *(length for length, _ in self.talk.kept.marks)]
        with closing(answer), patch.object(self.target, "prefill", wraps=self.target.prefill) as prefill:
            for response in answer:
                tokens.append(response.token)
                if len(tokens) == given:
                    break
        ids = self.talk.rendering.ids(self.talk.all_messages[:-1])
        assert tokens == self.after_a_fresh_prefill(ids, len(tokens))
        shared = agree(held[: len(ids) - 1], ids)
        if shared < reach[0]:  # a window has forgotten what comes before, but for the beginnings of the last turns
            shared = max((length for length in reach[1:] if length <= shared), default=0)
        assert self.talk.kept.prefilled == len(ids) - shared
        blocks = [call.args[0].size for call in prefill.call_args_list]
        assert sum(blocks) == len(ids) - shared - 1  # the last one's pass gives the first token
        assert self.talk.kept.kv.length == len(ids) + len(tokens) - 1
        assert self.talk.kept.held == [*ids, *tokens][:-1]
        return tokens

    def break_off(self, text: str) -> None:
        """Ask, and press Ctrl-C while the prompt is read."""
        before = list(self.talk.messages)

        def pressed(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with (
            patch.dict(self.talk.options, {"prompt_progress_callback": pressed, "prefill_step_size": 3}),
            pytest.raises(KeyboardInterrupt),
        ):
            next(self.talk.ask(text))
        assert self.talk.messages == before

    def after_a_fresh_prefill(self, ids: list[int], count: int) -> list[int]:
        options = {**self.talk.options, "max_tokens": count, "draft_tokens": 7}
        kv = self.target.make_kv(
            self.fresh["max_kv_size"], self.fresh["kv_bits"], self.fresh["kv_group_size"], exact=True
        )
        answer = stream_generate(
            self.target,
            self.tokenizer,
            ids,
            drafting="none",
            sampler=self.talk.sampler,
            kv=kv,
            max_kv_size=self.fresh["max_kv_size"],
            **options,
        )
        return [response.token for response in answer]

    def turn(self, what: str, dice: random.Random) -> None:
        """Something a person might do."""
        text = " ".join(dice.choices(WORDS, k=dice.randint(1, 5)))
        if what == "retry" and self.talk.messages:
            self.listen(self.talk.retry())
        elif what == "undo" and self.talk.messages:
            self.talk.undo()
        elif what == "break off":
            self.break_off(text)
        else:
            self.listen(self.talk.ask(text), dice.randint(1, 9) if what == "interrupt" else -1)
