"""What `mlx-skipspec chat` does: from flags to a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_skipspec import opening
from mlx_skipspec.api import check_options
from mlx_skipspec.chat import Chat, check_free
from mlx_skipspec.chooser import Chooser
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.drafting import check_choice
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.loading import read_weights
from mlx_skipspec.messages import read_messages
from mlx_skipspec.opening import check_think, open_cache, take_drafting, take_sampler, take_template
from mlx_skipspec.terminal import Screen, reader


def chat(
    model: str | None,
    dtype: str,
    system_prompt: str | None,
    think: bool | None,
    drafter: str,
    prompt_cache_file: Path | None,
    resume: Path | None,
    save: Path | None,
    show_drafts: bool,
    hide_thoughts: bool,
    **rest: Any,
) -> None:
    check_choice(drafter, rest["plan"], rest["sidecar"], rest["head"])
    template, sampler, guessing = take_template(rest, think), take_sampler(rest), take_drafting(rest)
    check_options(**rest)
    if resume is not None and save is not None:
        raise SkipSpecError("--resume keeps the conversation where it was; drop --save, or use /save once you are in.")
    messages = read_messages(resume) if resume is not None else []
    if system_prompt is not None and messages and messages[0].role == "system":
        raise SkipSpecError(f"{resume} has a system's message of its own; drop --system-prompt, or say /system later.")
    check_free(save)
    target, tokenizer = opening.open_model(model, dtype)
    if tokenizer.has_chat_template:
        check_think(tokenizer, think)
    cache, system_prompt = open_cache(prompt_cache_file, target, rest, system_prompt)
    chooser = Chooser(target, **guessing)
    screen = Screen(show_drafts, hide_thoughts)
    talk = Conversation(
        target,
        tokenizer,
        choose=chooser(drafter),
        sampler=sampler,
        system=system_prompt,
        arguments=template,
        cache=cache,
        notify=screen.aside,
        **rest,
    )
    read_weights(target)
    here = Chat(talk, screen, reader(), chooser, resume or save)
    screen.aside(f"mode {talk.drafting.mode}; /help lists what else can be said.")
    if show_drafts and not screen.show_drafts:
        screen.aside("--show-drafts needs colours, and there are none here.")
    if messages:
        talk.restart(messages)
        here.recall()
    here.run()
