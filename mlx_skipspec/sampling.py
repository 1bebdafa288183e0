"""How the target's logits become a token: a pure function of (logits, history, seed, position)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p, make_logits_processors

from mlx_skipspec.errors import SkipSpecError

Processor = Callable[[mx.array, mx.array], mx.array]  # (history (n,), logits (1, V)) -> (1, V), as in mlx-lm

COLDEST = 1e-4  # 1 / temperature must be a float16


def _need(name: str, value: float, low: float, high: float) -> None:
    if not (isinstance(value, (int, float)) and not math.isnan(value) and low <= value <= high and value != math.inf):
        top = "" if high == math.inf else f" and at most {high:g}"
        raise SkipSpecError(f"{name}={value!r}; need a number of at least {low:g}{top}.")


@dataclass(frozen=True)
class Sampler:
    """Draws for absolute position p depend on (seed, p) only, so plain and speculative runs draw the same.

    Accepting a guess while it equals the draw is then the rejection rule of speculative sampling with a one-hot draft
    distribution, and losslessness at any temperature is an `==`. Filters come in mlx-lm's order: processors, then
    top-p, min-p and top-k on the log-probabilities, then the temperature.

    Args:
        temperature: 0 takes the most likely token.
        top_p, top_k, min_p: filters; 0 (and 1 for top_p) is off. They act only where something is drawn.
        seed: of the draws.
        repetition_penalty: divides positive, multiplies negative logits of the last `repetition_context_size` tokens.
        logit_bias: pairs of token id and what is added to its logit.
        processors: mlx-lm's logits processors; each sees the true history, prompt included.

    Raises:
        SkipSpecError: a number out of its range.
    """

    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float | None = None
    repetition_context_size: int = 20
    logit_bias: tuple[tuple[int, float], ...] = ()
    processors: tuple[Processor, ...] = ()

    def __post_init__(self) -> None:
        _need("temperature", self.temperature, 0.0, math.inf)
        if 0 < self.temperature < COLDEST:
            raise SkipSpecError(f"temperature={self.temperature!r}; need 0 (likeliest token) or at least {COLDEST:g}.")
        _need("top_p", self.top_p, 0.0, 1.0)
        _need("min_p", self.min_p, 0.0, 1.0)
        _need("top_k", self.top_k, 0, math.inf)
        _need("seed", self.seed, 0, 2**63)
        _need("repetition_context_size", self.repetition_context_size, 1, math.inf)
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < math.inf:
            raise SkipSpecError(f"repetition_penalty={self.repetition_penalty!r}; need a number above 0 (1 is off).")
        for token, bias in self.logit_bias:
            _need("logit_bias token", token, 0, math.inf)
            if math.isnan(bias) or bias == math.inf:
                raise SkipSpecError(f"logit_bias of token {token} is {bias}; need a number, or -inf to ban it.")

    @cached_property
    def all_processors(self) -> tuple[Processor, ...]:
        """Built-in and the caller's, in mlx-lm's order."""
        own = make_logits_processors(dict(self.logit_bias), self.repetition_penalty, self.repetition_context_size)
        return (*own, *self.processors)

    def processed(self, logits: mx.array, history: mx.array | None = None) -> mx.array:  # (L, V) -> (L, V)
        """Logits behind the processors; row i's history is `history` less its last L-1-i tokens."""
        if not (processors := self.all_processors):
            return logits
        assert history is not None
        rows = []
        for i in range(logits.shape[0]):
            row, seen = logits[i : i + 1], history[: history.size - (logits.shape[0] - 1 - i)]
            for process in processors:
                row = process(seen, row)
            rows.append(row)
        return mx.concatenate(rows)

    def draw(self, logits: mx.array, position: int) -> tuple[mx.array, mx.array]:  # (L, V) -> (L,), (L,)
        """Choose from bare logits, without processors: what a drafter can do. The tokens, and how probable they were
        at temperature 1, which nothing is computed for unless somebody evaluates it."""
        chosen = self.choose(logits, position)
        score = mx.take_along_axis(logits, chosen[:, None], axis=-1)
        return chosen, mx.exp(score.squeeze(-1) - mx.logsumexp(logits, axis=-1))

    def choose(self, logits: mx.array, position: int) -> mx.array:  # (L, V) -> (L,)
        """The tokens for absolute positions `position`, `position` + 1, … from their processed logits."""
        if self.temperature == 0:
            return mx.argmax(logits, axis=-1)  # log-probabilities would take a CPU 1 % of a small model's pass
        logprobs = normalised(logits)
        if 0 < self.top_p < 1:
            logprobs = apply_top_p(logprobs, self.top_p)
        if self.min_p:
            logprobs = apply_min_p(logprobs, self.min_p)
        if 0 < self.top_k < logprobs.shape[-1]:
            logprobs = apply_top_k(logprobs, self.top_k)
        scaled = logprobs * (1 / self.temperature)
        keys = self._keys(range(position, position + scaled.shape[0]))
        return mx.vmap(lambda row, key: mx.random.categorical(row, key=key))(scaled, keys)

    def _keys(self, positions: range) -> mx.array:  # -> (L, 2)
        """A counter-based generator needs no sequence: one 64-bit key per (seed, position)."""
        mixed = (self.seed ^ (self.seed >> 32) * 0x9E3779B1) & 0xFFFFFFFF
        return mx.array([[mixed, position & 0xFFFFFFFF] for position in positions], dtype=mx.uint32)


def normalised(logits: mx.array) -> mx.array:
    """Log-probabilities, in the logits' own dtype as mlx-lm has them."""
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


GREEDY = Sampler()
