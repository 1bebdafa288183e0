"""Is our text mlx-lm's text? Generate both ways and look closely where they part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

from mlx_skipspec.decode import decode
from mlx_skipspec.drafters import Drafter
from mlx_skipspec.target import Target

IDENTICAL, NEAR_TIE, DIVERGED = "identical", "near-tie", "diverged"


@dataclass(frozen=True)
class Difference:
    """Where a text of ours parted from mlx-lm's.

    Attributes:
        prompt: its id or number.
        run: "plain" or "drafting".
        position: emitted tokens before the difference.
        ours, theirs: token ids there.
        gap: difference of the two tokens' logits where mlx-lm chose; None where one text simply goes on (its token
            against -1), which is never a near-tie.
        bound: the rounding noise of a logit there, twice over (each of the two has its own).
    """

    prompt: str
    run: str
    position: int
    ours: int
    theirs: int
    gap: float | None
    bound: float

    @property
    def verdict(self) -> str:
        return NEAR_TIE if self.gap is not None and self.gap <= self.bound else DIVERGED


class Checker:
    """Compares greedy texts of mlx-lm's plain loop, ours plain and ours drafting."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        eos: Iterable[int] = (),
        draft_tokens: int = 3,
        max_tokens: int = 64,
        max_kv_size: int | None = None,
    ) -> None:
        self.target, self.drafter, self.draft_tokens = target, drafter, draft_tokens
        self.eos, self.max_tokens, self.max_kv_size = frozenset(eos), max_tokens, max_kv_size
        self.theirs = mlx_lm_model(target)

    def compare(self, name: str, prompt: Sequence[int]) -> list[Difference]:
        """The differences of one prompt's texts, at most one for each of our two runs."""
        reference = self.reference(prompt)
        found = []
        for run, drafter in (("plain", None), ("drafting", self.drafter)):
            ours = self.ours(prompt, drafter)
            if ours == reference:
                continue
            at = next((i for i, (a, b) in enumerate(zip(ours, reference, strict=False)) if a != b), None)
            if at is None:  # one text is the beginning of the other: an end was missed
                at = min(len(ours), len(reference))
                longer = ours if len(ours) > at else reference
                pair = (longer[at], -1) if longer is ours else (-1, longer[at])
                found.append(Difference(name, run, at, *pair, None, 0.0))
                continue
            gap, bound = self.closeness(prompt, reference[:at], ours[at], reference[at])
            found.append(Difference(name, run, at, ours[at], reference[at], gap, bound))
        return found

    def reference(self, prompt: Sequence[int]) -> list[int]:
        """mlx-lm's plain greedy text, its last token the one that ends it."""
        tokens = []
        for token, _ in self._their_steps(prompt, self.max_tokens):
            tokens.append(int(token))
            if token in self.eos:
                break
        return tokens

    def ours(self, prompt: Sequence[int], drafter: Drafter | None) -> list[int]:
        steps = decode(
            self.target,
            self.target.make_kv(self.max_kv_size),
            prompt,
            drafter=drafter,
            draft_tokens=self.draft_tokens,
            max_tokens=self.max_tokens,
            stop=self.eos.__contains__,
        )
        return [token for step in steps for token in step.tokens]

    def closeness(self, prompt: Sequence[int], emitted: Sequence[int], ours: int, theirs: int) -> tuple[float, float]:
        """How far apart two candidates' logits are after `emitted`, and how much of that may be rounding noise.

        Both are mlx-lm's word, so that no fault of ours can excuse itself. The noise is measured on the spot, the
        newest rows in one block against one at a time, and is never less than one rounding of the logits themselves.
        """
        for _, logprobs in self._their_steps(prompt, len(emitted) + 1):
            seen = logprobs  # of the last step: what mlx-lm chose from
        both = mx.array([ours, theirs])
        one, other = seen[both].astype(mx.float32)
        history = mx.array([*prompt, *emitted], dtype=mx.uint32)
        rows = min(self.draft_tokens + 1, history.size)
        block, single = (self._their_logits(history, rows, width) for width in (rows, 1))
        rounding = mx.finfo(seen.dtype).eps * mx.abs(single[-1, both]).max()
        noise = mx.maximum(mx.abs(block - single).max(), rounding)
        return float(mx.abs(one - other)), 2 * float(noise)

    def _their_steps(self, prompt: Sequence[int], max_tokens: int) -> Iterator[tuple[int, mx.array]]:
        cache = mlx_lm_cache(self.target, self.theirs, self.max_kv_size)
        return generate_step(mx.array(list(prompt)), self.theirs, max_tokens=max_tokens, prompt_cache=cache)

    def _their_logits(self, history: mx.array, rows: int, width: int) -> mx.array:  # (n,) -> (rows, V)
        """mlx-lm's logits of the last `rows` positions, computed `width` at a time behind the same prefill."""
        kv = [self.target.make_kv()] if isinstance(self.theirs, OurBlocks) else make_prompt_cache(self.theirs)
        start = history.size - rows
        if start:
            self.theirs(history[None, :start], cache=kv)
            mx.eval([layer.state for layer in kv])
        parts = [self.theirs(history[None, i : i + width], cache=kv)[0] for i in range(start, history.size, width)]
        return mx.concatenate(parts).astype(mx.float32)


class OurBlocks(nn.Module):
    """Our blocks behind mlx-lm's loop, for models whose blocks mlx-lm has not got right."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:  # (1, L) -> (1, L, V)
        kv = cache[0]
        with kv.prefilling():
            return self._target(inputs[0], kv)[0]


def mlx_lm_model(target: Target) -> nn.Module:
    """mlx-lm's own model around the very same weights, so that nothing is held twice."""
    if mlx_lm_would_be_wrong(target):
        return OurBlocks(target)
    args = target.args
    family = import_module(f"mlx_lm.models.{'llama' if args.model_type == 'mistral' else args.model_type}")
    settings = asdict(args) | {
        "attention_bias": args.o_bias,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in args.windows],
        "sliding_window": next(filter(None, args.windows), None),
    }
    model = family.Model(family.ModelArgs.from_dict(settings))
    model.update_modules(target.model.leaf_modules())
    return model.eval()


def mlx_lm_cache(target: Target, theirs: nn.Module, max_kv_size: int | None) -> list[Any] | None:
    """A cache for mlx-lm's loop, None for its own. Its Llama and Mistral ignore --max-kv-size; handed the ring, they
    honour it."""
    if isinstance(theirs, OurBlocks):
        return [target.make_kv(max_kv_size)]
    if max_kv_size is None:
        return None
    return [
        RotatingKVCache(max_size=max_kv_size, keep=4)
        if window is None or window > max_kv_size
        else RotatingKVCache(max_size=window)
        for window in target.args.windows
    ]


def mlx_lm_would_be_wrong(target: Target) -> bool:
    """mlx-lm 0.32 has no windows but Llama's mixed ones, no biases in Qwen3 and no head size of Qwen2's own."""
    args = target.args
    windows = set(args.windows)
    sliding = windows != {None} and not (args.model_type == "llama" and None in windows)
    biased = args.model_type == "qwen3" and args.qkv_bias
    own_size = args.model_type == "qwen2" and args.head_dim * args.num_attention_heads != args.hidden_size
    return sliding or biased or own_size


def as_json(prompts: int, differences: Sequence[Difference]) -> dict[str, Any]:
    """The object `check --json` prints. A prompt counts by the worst of its runs."""
    verdicts: dict[str, str] = {}
    for difference in differences:
        if verdicts.get(difference.prompt) != DIVERGED:
            verdicts[difference.prompt] = difference.verdict
    near_ties = sum(verdict == NEAR_TIE for verdict in verdicts.values())
    return {
        "prompts": prompts,
        "identical": prompts - len(verdicts),
        "near_ties": near_ties,
        "diverged": len(verdicts) - near_ties,
        "differences": [asdict(d) | {"verdict": d.verdict} for d in differences],
    }
