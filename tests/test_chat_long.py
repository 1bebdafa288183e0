"""A thousand turns in a window of 256 tokens: neither the model's memory nor the time of a turn grows."""

from __future__ import annotations

import resource
import sys
import time
from statistics import median

import mlx.core as mx
import pytest
from chatting import drafting, model

from mlx_skipspec.conversation import Conversation

TURNS, EARLY, PAIRS = 1000, 200, 40
# What a turn leaves on the host: its text and token ids, and what lookup has read.
HOST_BYTES = {"none": 8_000, "paced": 40_000}
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
TEMPLATE_SECONDS = 0.02  # transformers runs the template over all turns; a thousand take it 10 ms


def talk_of(drafter: str) -> Conversation:
    target, tokenizer = model(eos=(1,))
    return Conversation(target, tokenizer, choose=drafting(target, drafter), max_kv_size=256, max_tokens=16)


def seconds(talk: Conversation, turn: int) -> float:
    """Of the processor's, which count the same when the machine does something else as well."""
    started = time.process_time()
    list(talk.ask(f"hello {turn}"))
    return time.process_time() - started


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["none", "paced"])
def test_a_thousand_turns_cost_as_much_each_as_the_first_and_hold_no_more(drafter: str) -> None:
    old, young = talk_of(drafter), talk_of(drafter)
    for turn in range(EARLY):
        seconds(young, turn)  # so that both windows have wrapped, and it is no more than the age that differs
    held, peaks = [], []
    for turn in range(TURNS):
        seconds(old, turn)
        held.append(mx.get_active_memory())
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert old.kept.kv.length > 20 * 256
    assert max(held[EARLY:]) <= 1.02 * max(held[:EARLY])
    assert peaks[-1] - peaks[EARLY] <= HOST_BYTES[drafter] * (TURNS - EARLY) / UNIT
    # In pairs, as the machine may be at its best in one minute and not in another.
    pairs = [(seconds(old, TURNS + turn), seconds(young, EARLY + turn)) for turn in range(PAIRS)]
    late, early = (median(part) for part in zip(*pairs, strict=True))
    assert late <= 1.1 * early + TEMPLATE_SECONDS
