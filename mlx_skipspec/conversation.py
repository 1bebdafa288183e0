"""A conversation on one cache, which outlives its turns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from mlx_skipspec.api import Response, stream_generate
from mlx_skipspec.chooser import Chooser
from mlx_skipspec.drafting import Drafting
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.kept_cache import KeptCache
from mlx_skipspec.messages import Message
from mlx_skipspec.prompt_cache import PromptCache
from mlx_skipspec.rendering import Rendering
from mlx_skipspec.sampling import GREEDY, Sampler
from mlx_skipspec.stats import Stats
from mlx_skipspec.target import Target

ROOM = 512  # tokens an answer should find room for before the context is full; at most a quarter of the context


class Conversation:
    """Asks a model in turns. Each turn prefills only what is new.

    A prompt is the chat template over the whole conversation, its answers as they were generated, and the cache goes
    back to the longest prefix it holds of that. What an undone, retried or interrupted answer left is thereby gone, and
    nothing else is. The drafter lives on as well: lookup has read the text so far, and r, the bridge's second input, is
    the last verified token's state, as in one long text.

    An answer that is interrupted stays as far as it was given; one of which nothing was given leaves the conversation
    as it was before the question.

    Args:
        choose: gives who guesses, for a sampler; None: `auto`.
        system: the system's message.
        arguments: of the chat template.
        cache: a prompt cache to begin with: its system's message is the conversation's, and its prompt the beginning of
            the first question.
        notify: hears a line when the conversation outgrows the model's context and its oldest turns go out of view.
        max_tokens, stop, draft_tokens, prefill_step_size, prompt_progress_callback: as in `stream_generate`.

    Raises:
        SkipSpecError: the model has no chat template, or a cache that can't be made.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Any,
        *,
        choose: Callable[[Sampler], Drafting] | None = None,
        sampler: Sampler = GREEDY,
        system: str | None = None,
        arguments: dict[str, Any] | None = None,
        cache: PromptCache | None = None,
        max_kv_size: int | None = None,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        notify: Callable[[str], None] = lambda line: None,
        **options: Any,
    ) -> None:
        self.target, self.tokenizer, self.options = target, tokenizer, options
        self.rendering = Rendering(tokenizer, arguments)
        self.choose = choose or Chooser(target)("auto")
        self.decide(sampler)
        self.max_kv_size, self.notify = max_kv_size, notify
        kv = cache.kv if cache else target.make_kv(max_kv_size, kv_bits, kv_group_size, exact=True)
        self.kept = KeptCache(kv, cache.ids if cache else ())
        self.system, self.opening = (cache.system, cache.prompt) if cache else (system, "")
        self.messages: list[Message] = []
        self.stats = Stats()
        self._out_of_view = 0  # messages

    def decide(self, sampler: Sampler, choose: Callable[[Sampler], Drafting] | None = None) -> None:
        """Draw, and draft, otherwise from now on. Where a drafter can't be had, all stays as it was."""
        choose = choose or self.choose
        self.drafting = choose(sampler)
        self.sampler, self.choose = sampler, choose

    def ask(self, text: str) -> Generator[Response, None, None]:
        """Put a question, in place of the last one if that has no answer; the answer comes as it is read."""
        before = list(self.messages)
        if before and before[-1].role == "user":
            self.messages.pop()
        self.messages.append(Message("user", text if self.messages else self.opening + text))
        return self._answer(before, list(self.messages))

    def retry(self) -> Generator[Response, None, None]:
        """Answer the last question again, whether it has an answer or not. Where tokens are drawn, others are.

        Raises:
            SkipSpecError: there is no question yet.
        """
        if not self.messages:
            raise SkipSpecError("There is no question to answer again yet; ask one.")
        before = list(self.messages)
        if self.sampler.temperature:
            self.decide(replace(self.sampler, seed=self.sampler.seed + 1))
        return self._answer(before, before[:-1] if before[-1].role == "assistant" else before)

    def undo(self) -> str:
        """Take back the last question and its answer; the question's text.

        Raises:
            SkipSpecError: there is none.
        """
        if not self.messages:
            raise SkipSpecError("There is nothing to take back yet; ask something.")
        while (last := self.messages.pop()).role != "user":
            pass
        if self._out_of_view >= len(self.messages):
            self._out_of_view = 0
        return last.content

    def restart(self, messages: Sequence[Message] = ()) -> None:
        """Go on with other messages, or none: the first may be the system's, which else stays as it is."""
        self.messages, self._out_of_view, self.stats = list(messages), 0, Stats()
        if self.messages and self.messages[0].role == "system":
            self.system = self.messages.pop(0).content

    def text_of_last(self) -> str:
        """The last answer as it was generated, thoughts and tags included."""
        return self.rendering.decode(self.messages[-1].ids or ())

    @property
    def all_messages(self) -> list[Message]:
        """With the system's in front, if there is one."""
        return ([Message("system", self.system)] if self.system else []) + self.messages

    def _answer(self, before: list[Message], asked: list[Message]) -> Generator[Response, None, None]:
        tokens: list[int] = []
        pieces: list[str] = []
        response = None
        ids: list[int] = []
        self.messages = asked
        try:
            ids = self._prompt()
            self.kept.begin(ids)
            steps = stream_generate(
                self.target,
                self.tokenizer,
                ids,
                drafting=self.drafting,
                sampler=self.sampler,
                kv=self.kept.kv,
                max_kv_size=self.max_kv_size,
                **self.options,
            )
            with closing(steps):
                for response in steps:
                    tokens.append(response.token)
                    pieces.append(response.text)
                    yield response
        finally:
            if ids:
                self.kept.end(ids + tokens)
            if response is not None:
                self.stats.merge(response.stats)
                shown = "".join(pieces) if response.finish_reason == "stop" else None
                self.messages = [*asked, self.rendering.message(tokens, shown)]
            else:
                self.messages = before

    def _prompt(self) -> list[int]:
        """Ids of the conversation; without a ring, the oldest turns go out of view when the context is full."""
        ids, context = self._ids(), self.target.args.max_position_embeddings
        room = min(ROOM, context // 4)
        if self.max_kv_size is not None or len(ids) + room <= context:
            return ids
        gone, in_view_so_far = 0, self._out_of_view
        # Half of the context at once, as the rest has to be prefilled again each time.
        while len(ids) > context // 2 and (following := self._next_question()):
            self._out_of_view, gone = following, gone + 1
            ids = self._ids()
        if len(ids) >= context:  # the question alone is too long, which will be said; nothing is gone for that
            self._out_of_view = in_view_so_far
        elif gone:
            turns = "the oldest turn is" if gone == 1 else f"the {gone} oldest turns are"
            self.notify(f"The model's context of {context} tokens is full; {turns} out of its view from here on.")
        return ids

    def _ids(self) -> list[int]:
        system = [Message("system", self.system)] if self.system else []
        return self.rendering.ids(system + self.messages[self._out_of_view :])

    def _next_question(self) -> int:
        """Where the second turn in view begins; 0 if there is none."""
        places = range(self._out_of_view + 1, len(self.messages))
        return next((i for i in places if self.messages[i].role == "user"), 0)
