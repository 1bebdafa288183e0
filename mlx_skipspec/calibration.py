"""Measure what a pass of the target and a draft step cost on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median_low

import mlx.core as mx
import numpy as np

from mlx_skipspec.costs import Costs
from mlx_skipspec.drafters.protocol import Drafter
from mlx_skipspec.passes import Passes
from mlx_skipspec.sampling import GREEDY
from mlx_skipspec.target import Target

CONTEXTS = (64, 1024)  # cache lengths measured at
WIDTHS = (1, 2, 3, 4, 8, 12)  # passes measured; the others lie between
ROOM = 32  # rows a cache has been filled beyond its length, so that no pass pays for enlarging it
ENOUGH = 5  # times each is measured, unless time is up
REPEAT_SECONDS = 1.0  # after which nothing is measured a second time


def measure(
    target: Target,
    drafters: Sequence[Drafter],
    *,
    widest: int = WIDTHS[-1],
    seconds: float = REPEAT_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Costs:
    """Time passes of up to `widest` rows and the drafters' steps, in a cache of its own; each once, and again up to
    five times while no more than `seconds` have passed.

    The drafters have begun another text afterwards: `begin` them before they draft.
    """
    widths = sorted({width for width in WIDTHS if width < widest} | {1, widest})
    few = sorted({1, widest})  # at the longer context, where attention adds about the same for every row
    probes = [_Probe(target, drafters, context, clock) for context in CONTEXTS]
    passes: list[dict[int, list[float]]] = [{width: [] for width in some} for some in (widths, few)]
    drafts: list[list[list[float]]] = [[[] for _ in drafters] for _ in probes]
    probes[0].verify(widest)  # the first time kernels are compiled
    started = clock()
    for turn in range(ENOUGH):  # in turns, so that a slow moment of the machine meets all alike
        for at, probe_ in enumerate(probes):
            probe_.begin()
            for width, times in passes[at].items():
                if turn and clock() - started > seconds:
                    break
                times.append(probe_.verify(width))
                for i, steps in enumerate(drafts[at]):  # behind a pass, which drove the layers out of the CPU's caches
                    steps.append(probe_.draft(i))
    all_widths = list(range(1, widest + 1))
    short = _filled(all_widths, widths, [median_low(times) for times in passes[0].values()])
    added = [median_low(times) - short[width - 1] for width, times in passes[1].items()]
    long = [a + b for a, b in zip(short, _filled(all_widths, few, added, monotone=False), strict=True)]
    costs = Costs(
        CONTEXTS,
        (tuple(short), tuple(max(a, b) for a, b in zip(short, long, strict=True))),
        {
            drafter.name: (median_low(near), median_low(far))
            for drafter, near, far in zip(drafters, *drafts, strict=True)
        },
    )
    for drafter in drafters:
        drafter.begin(target, target.make_kv())  # so that none of them keeps the rows
    del probes, probe_
    mx.clear_cache()
    return costs


class _Probe:
    """A cache of a given length with arbitrary rows in it, and what is timed there."""

    def __init__(self, target: Target, drafters: Sequence[Drafter], length: int, clock: Callable[[], float]) -> None:
        self.target, self.drafters, self.clock = target, drafters, clock
        self.context = [i % 16 % target.vocab_size for i in range(length + 1)]
        self.kv = target.make_kv()
        self.passes = Passes(target, self.kv, GREEDY)
        args = target.args
        rows = mx.random.normal((1, args.num_key_value_heads, length + ROOM, args.head_dim), key=mx.random.key(0))
        for layer in self.kv.layers:  # an attention takes the same time whatever it looks at
            layer.update_and_fetch(rows.astype(target.dtype), rows.astype(target.dtype))
        self.kv.rewind_to(length)
        mx.eval(self.kv.state)

    def verify(self, width: int) -> float:
        """Seconds of a pass as the loop does it: built, queued, read. A plain one was built while another ran, and
        builds the next before it is read."""
        length = self.kv.length
        started = self.clock()
        built = self.passes.next(self.context, mx.array(self.context[:1] * (width - 1), dtype=mx.uint32))
        if width == 1:
            started = self.clock()
        built.queue()
        if width == 1:
            self.passes.ahead(self.context, built)
        built.read()
        seconds = self.clock() - started
        self.kv.rewind_to(length)
        return seconds

    def begin(self) -> None:
        """Let the drafters draft once, so that nothing is compiled later and a lookup has read the text."""
        for drafter in self.drafters:
            drafter.begin(self.target, self.kv)
            mx.eval(drafter.draft(self.context, 1))

    def draft(self, i: int) -> float:
        """Seconds of one draft step."""
        started = self.clock()
        mx.eval(self.drafters[i].draft(self.context, 1))
        return self.clock() - started


def _filled(at: Sequence[int], known: Sequence[int], values: Sequence[float], monotone: bool = True) -> list[float]:
    """Values between the known ones. Noise only ever adds, so where a wider pass was faster, it says what is true."""
    if monotone:
        values = np.minimum.accumulate(values[::-1])[::-1].tolist()
    return [float(value) for value in np.interp(at, known, values)]
