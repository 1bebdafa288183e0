"""From a conversation to token ids: the model's chat template over all of it, around answers kept as generated.

Text that is tokenised again need not give the ids that were generated (the cache would be thrown away, and the model
would read what it never said). So the template is run with a mark in place of each answer, and the ids are put where
the marks come out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.messages import Message
from mlx_skipspec.prompts import check_unicode, templated
from mlx_skipspec.thoughts import split_thoughts

MARK = "\uf8ff"  # of Unicode's private use: nobody's text, and no white space a template might trim


class Rendering:
    """A tokenizer's chat template with its arguments.

    Raises:
        SkipSpecError: there is no template.
    """

    def __init__(self, tokenizer: Any, arguments: dict[str, Any] | None = None) -> None:
        if not tokenizer.has_chat_template:
            raise SkipSpecError(
                "The model has no chat template; need one to tell who says what. Give an instruction-tuned model, "
                "or continue bare text: mlx-skipspec generate."
            )
        self.tokenizer = tokenizer
        self.arguments = arguments or {}
        self._encoded: dict[str, list[int]] = {}  # texts of the last rendering

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The conversation and the opening of the next answer.

        Raises:
            SkipSpecError: the template refuses the conversation, or changes answers beyond recognition.
        """
        answers = [message for message in messages if message.role == "assistant"]
        ids: list[int] = []
        used: dict[str, list[int]] = {}

        def add(text: str) -> None:
            used[text] = self._encoded.get(text) or self.encode(text)
            ids.extend(used[text])

        *before, self.opening = self._around(messages)
        for text, answer in zip(before, answers, strict=True):
            add(answer.after if self._same(answer.after, text) else text)
            if answer.ids is None:
                add(self._text(answer))
            else:
                ids += answer.ids if self.keeps_thoughts else self.spoken(answer.ids, answer.after)
        add(self.opening)
        self._encoded = used
        return ids

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    def decode(self, ids: Sequence[int]) -> str:
        """Text as it appears when it is streamed."""
        detokenizer = self.tokenizer.detokenizer
        detokenizer.reset()
        for token in ids:
            detokenizer.add_token(token)
        detokenizer.finalize()
        return str(detokenizer.text)

    def spoken(self, ids: Sequence[int], after: str) -> list[int]:
        """The tokens of an answer given behind `after`, without thoughts and the white space behind them."""
        thoughts, answer = split_thoughts(self.tokenizer, ids, self.opens_thoughts(after))
        while thoughts and answer and not self.decode(answer[:1]).strip():
            answer = answer[1:]
        return answer

    def message(self, tokens: Sequence[int], shown: str | None) -> Message:
        """The answer given behind the last rendering; `shown` is its text where a stop string or token has ended it,
        neither of which is part of it."""
        ids = list(tokens)
        if shown is not None and ids[-1] in self.tokenizer.eos_token_ids:
            ids.pop()
        elif shown is not None:
            while not shown.startswith(self.decode(ids)):
                ids.pop()
            ids += self.encode(shown[len(self.decode(ids)) :])
        thoughts, _ = split_thoughts(self.tokenizer, ids, self.opens_thoughts(self.opening))
        text = self.decode(thoughts)
        for tag in (self.tokenizer.think_start, self.tokenizer.think_end) if thoughts else ():
            text = text.replace(tag, "")
        content = self.decode(self.spoken(ids, self.opening))
        return Message("assistant", content, text.strip(), tuple(ids), self.opening)

    def opens_thoughts(self, text: str) -> bool:
        """Whether the template's text before an answer has begun its thoughts."""
        return self.tokenizer.has_thinking and text.rstrip().endswith(self.tokenizer.think_start)

    @cached_property
    def keeps_thoughts(self) -> bool:
        """Whether the template shows the model the thoughts of earlier answers."""
        if not self.tokenizer.has_thinking:
            return True
        thought = f"{self.tokenizer.think_start}\n{MARK}\n{self.tokenizer.think_end}\n\nYes."
        asked = {"role": "user", "content": "Well?"}
        return MARK in self._run([asked, {"role": "assistant", "content": thought}, asked])

    def _around(self, messages: Sequence[Message]) -> list[str]:
        """The template's text before each answer, and behind the last."""
        mark = MARK
        while any(mark in message.content for message in messages):
            mark += MARK
        holes = 0
        shown = []
        for message in messages:
            content = message.content
            if message.role == "assistant":
                content, holes = f"{mark}{holes};", holes + 1
            else:
                check_unicode(content, f"The {message.role}'s message")
            shown.append({"role": message.role, "content": content})
        text = self._run(shown)
        if re.findall(f"{mark}(\\d+);", text) != [str(hole) for hole in range(holes)]:
            raise SkipSpecError(
                "The model's chat template does not show each earlier answer once; need one that does for a "
                "conversation. Ask single questions: mlx-skipspec generate."
            )
        return re.split(f"{mark}\\d+;", text)

    def _run(self, messages: list[dict[str, str]]) -> str:
        arguments = {"add_generation_prompt": True, **self.arguments, "tokenize": False}
        text = templated(self.tokenizer, messages, **arguments)
        if not isinstance(text, str) or not text:
            raise SkipSpecError("The chat template gives no text with these arguments; give others.")
        return text

    def _same(self, after: str, text: str) -> bool:
        """Whether an answer made after one text may stay there though the template now writes the other: they differ by
        white space an answer's own first token may carry, or by the beginning of thoughts that are kept."""
        now = text.rstrip()
        more = after[len(now) :].strip()
        opened = self.tokenizer.has_thinking and self.keeps_thoughts and more == self.tokenizer.think_start
        return after.startswith(now) and (not more or opened)

    def _text(self, answer: Message) -> str:
        start, end = self.tokenizer.think_start, self.tokenizer.think_end
        kept = answer.thoughts and self.tokenizer.has_thinking and self.keeps_thoughts
        return f"{start}\n{answer.thoughts}\n{end}\n\n{answer.content}" if kept else answer.content
