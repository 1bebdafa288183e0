"""The check itself: right models pass, wrong ones are caught, and a tie is called a tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
import tiny
from drafters import NOTHING, Liar, gap
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

from mlx_skipspec.check import DIVERGED, NEAR_TIE, Checker, Difference, OurBlocks, as_json, mlx_lm_model
from mlx_skipspec.drafters import PromptLookup
from mlx_skipspec.kv import KV
from mlx_skipspec.sampling import GREEDY
from mlx_skipspec.target import Target

PROMPTS = [tiny.prompt(seed, 16) for seed in range(2)]
TOKENS = 20


def checker(target: Target, drafter: Any = None, **options: Any) -> Checker:
    return Checker(target, drafter or Liar(), **({"max_tokens": TOKENS} | options))


def differences(check: Checker) -> list[Difference]:
    return [d for number, prompt in enumerate(PROMPTS) for d in check.compare(str(number), prompt)]


class Disturbed(Target):
    """A target that is right one row at a time and wrong in blocks: what a broken cache or mask looks like."""

    def __init__(self, target: Target, by: mx.array) -> None:
        super().__init__(target.model)
        self.by = by

    def __call__(self, tokens: mx.array, kv: KV) -> tuple[mx.array, list[mx.array]]:
        logits, states = super().__call__(tokens, kv)
        return (logits + self.by if tokens.size > 1 else logits), states


class Late(Liar):
    """Has no idea for so many tokens, then two wrong ones."""

    def __init__(self, tokens: int) -> None:
        self.until = len(PROMPTS[0]) + tokens

    def draft(self, context: Sequence[int], k: int) -> mx.array:
        return NOTHING if len(context) < self.until else mx.array([0, 0][:k], dtype=mx.uint32)


def favour(token: int, by: float) -> mx.array:
    return by * (mx.arange(tiny.VOCAB) == token)


@pytest.mark.parametrize("drafter", ["liar", "skip", "lookup"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_text_of_a_right_model_is_identical_plain_and_drafting(family: str, drafter: str) -> None:
    target = tiny.target(family)
    guesser = {"liar": Liar(), "skip": gap(target, GREEDY), "lookup": PromptLookup()}[drafter]
    found = differences(checker(target, guesser))
    assert as_json(len(PROMPTS), found) == {
        "prompts": 2,
        "identical": 2,
        "near_ties": 0,
        "diverged": 0,
        "differences": [],
    }


def test_the_reference_is_mlx_lms_own_loop() -> None:
    target = tiny.target()
    check = checker(target)
    steps = generate_step(mx.array(PROMPTS[0]), mlx_lm_model(target), max_tokens=TOKENS)
    assert check.reference(PROMPTS[0]) == [int(token) for token, _ in steps]
    assert type(check.theirs).__module__ == "mlx_lm.models.llama"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_reference_shares_our_weights(family: str) -> None:
    target = tiny.target(family)
    ours, theirs = dict(target.model.named_modules()), dict(mlx_lm_model(target).named_modules())
    weighted = [path for path, module in ours.items() if "weight" in module]
    assert len(weighted) > 6 * tiny.DEPTH
    assert all(theirs[path] is ours[path] for path in weighted)


def test_the_texts_end_with_the_token_that_ends_them() -> None:
    target = tiny.target()
    whole = checker(target).reference(PROMPTS[0])
    check = checker(target, eos=[whole[9]])
    at = whole.index(whole[9])
    assert check.reference(PROMPTS[0]) == check.ours(PROMPTS[0], Liar()) == whole[: at + 1]
    assert check.compare("0", PROMPTS[0]) == []


def test_a_wrong_token_is_reported_with_its_place_and_how_wrong_it_is() -> None:
    target = tiny.target()
    right = checker(target).reference(PROMPTS[0])
    wrong = next(token for token in range(tiny.VOCAB) if token not in right)
    # Nothing is guessed for six tokens; then the first block of the disturbed target has its say.
    disturbed = Disturbed(target, favour(wrong, 100.0))
    found = checker(disturbed, Late(6)).compare("0", PROMPTS[0])
    assert [(d.prompt, d.run, d.position, d.ours, d.theirs, d.verdict) for d in found] == [
        ("0", "drafting", 6, wrong, right[6], DIVERGED)
    ]
    logits = mlx_lm_model(target)(mx.array([*PROMPTS[0], *right[:6]])[None])[0, -1]
    assert found[0].gap == pytest.approx((logits[right[6]] - logits[wrong]).item(), abs=1e-3)
    assert found[0].bound < 1e-3 < found[0].gap


@pytest.mark.parametrize("by", [0.5, 3.0, 100.0])
def test_a_target_that_is_wrong_in_blocks_cannot_excuse_itself_with_its_own_noise(by: float) -> None:
    target = tiny.target()
    noise = by * mx.random.normal((tiny.VOCAB,), key=mx.random.key(1))
    result = as_json(len(PROMPTS), differences(checker(Disturbed(target, noise))))
    assert result["diverged"] > 0
    assert {d["run"] for d in result["differences"]} == {"drafting"}
    assert all(d["verdict"] == DIVERGED for d in result["differences"])


def test_a_model_that_is_wrong_altogether_is_reported_for_both_runs() -> None:
    target = tiny.target()
    check = checker(target)
    check.target = tiny.target(seed=7)
    result = as_json(len(PROMPTS), differences(check))
    assert (result["identical"], result["near_ties"], result["diverged"]) == (0, 0, 2)
    assert [d["run"] for d in result["differences"]] == ["plain", "drafting"] * 2


UNTIED = tiny.config("llama", tie_word_embeddings=False)
AT = 6


def twins(apart: float) -> tuple[Target, int, int, list[int]]:
    """A model, the token its text has at AT, another whose row of the head is the same up to `apart`, and the text."""
    target = tiny.target(tie_word_embeddings=False)
    text = checker(target).reference(PROMPTS[0])
    said = text[AT]
    twin = next(token for token in range(said + 1, tiny.VOCAB) if token not in text)
    rows = target.model.lm_head.weight
    rows[twin] = rows[said] * (1 - apart)
    assert checker(target).reference(PROMPTS[0]) == text
    return target, said, twin, text


def test_a_flip_between_twins_is_a_near_tie_and_no_divergence() -> None:
    target, said, twin, _ = twins(1e-7)
    # What another kernel for blocks may do: round the last bit of a logit the other way.
    rounding = Disturbed(target, favour(twin, 5e-6))
    found = checker(rounding, Late(AT)).compare("0", PROMPTS[0])
    assert [(d.run, d.position, d.ours, d.theirs, d.verdict) for d in found] == [("drafting", AT, twin, said, NEAR_TIE)]
    assert found[0].gap <= found[0].bound < 1e-4
    result = as_json(1, found)
    assert (result["identical"], result["near_ties"], result["diverged"]) == (0, 1, 0)


@pytest.mark.parametrize(("apart", "tie"), [(0.0, True), (1e-7, True), (1e-5, False), (1e-2, False)])
def test_a_tie_goes_as_far_as_rounding_does(apart: float, tie: bool) -> None:
    target, said, twin, text = twins(apart)
    distance, bound = checker(target).closeness(PROMPTS[0], text[:AT], twin, said)
    assert (distance <= bound) is tie


def test_what_rounds_otherwise_in_blocks_is_measured_as_noise() -> None:
    check = checker(tiny.target())
    distance, _ = check.closeness(PROMPTS[0], [5, 6], 7, 8)
    theirs = check.theirs

    class Rounding(nn.Module):
        layers = theirs.layers

        def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
            return theirs(inputs, cache=cache) + (0.01 if inputs.shape[1] > 1 else 0.0)

    check.theirs = Rounding()
    assert check.closeness(PROMPTS[0], [5, 6], 7, 8) == pytest.approx((distance, 0.02), abs=1e-4)


def test_in_16_bits_a_rounding_is_larger() -> None:
    target = tiny.target()
    exact = checker(target).closeness(PROMPTS[0], [5, 6], 7, 8)
    target.model.update(tree_map(lambda w: w.astype(mx.bfloat16), target.model.parameters()))
    half = checker(target).closeness(PROMPTS[0], [5, 6], 7, 8)
    assert half[0] == pytest.approx(exact[0], abs=0.3)
    assert exact[1] < 1e-4 < half[1]


@pytest.mark.parametrize("length", [1, 2, 3, 24])
def test_closeness_is_defined_from_the_first_token_on(length: int) -> None:
    distance, bound = checker(tiny.target()).closeness(PROMPTS[0][:length], [], 7, 8)
    assert distance > bound > 0


def test_a_text_that_ends_where_the_other_goes_on_has_diverged() -> None:
    target = tiny.target()
    check = checker(target)
    whole = check.reference(PROMPTS[0])
    check.eos = frozenset([whole[4]])
    ours = check.ours
    check.ours = lambda prompt, drafter: ours(prompt, drafter)[:-1] if drafter else ours(prompt, drafter)  # type: ignore[method-assign]
    found = check.compare("0", PROMPTS[0])
    at = whole.index(whole[4])
    assert [(d.run, d.position, d.ours, d.theirs, d.verdict) for d in found] == [
        ("drafting", at, -1, whole[4], DIVERGED)
    ]


def test_max_kv_size_is_honoured_by_the_reference_of_llama() -> None:
    target = tiny.target()
    check = checker(target, max_kv_size=12)
    ring = [RotatingKVCache(max_size=12, keep=4) for _ in target.layers]
    steps = generate_step(mx.array(PROMPTS[0]), check.theirs, max_tokens=TOKENS, prompt_cache=ring)
    reference = check.reference(PROMPTS[0])
    assert reference == [int(token) for token, _ in steps]
    assert reference != checker(target).reference(PROMPTS[0])
    assert differences(check) == []


def test_in_a_ring_the_gap_is_the_one_mlx_lm_saw() -> None:
    """The ring's prefill sees other rows than its single steps do, so the history must not be read again in a block."""
    target = tiny.target()
    check = checker(target, max_kv_size=12)
    text = check.reference(PROMPTS[0])
    ring = [RotatingKVCache(max_size=12, keep=4) for _ in target.layers]
    *_, (_, logprobs) = generate_step(mx.array(PROMPTS[0]), check.theirs, max_tokens=16, prompt_cache=ring)
    assert check.closeness(PROMPTS[0], text[:15], 7, 8)[0] == abs((logprobs[7] - logprobs[8]).item())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 10}),
        ("qwen3", {"attention_bias": True}),
        ("qwen3", {"sliding_window": 10, "use_sliding_window": True, "max_window_layers": 3}),
    ],
    ids=["mistral with a window", "qwen3 with biases", "qwen3 with windows"],
)
def test_models_mlx_lm_has_wrong_are_checked_against_our_blocks_in_its_loop(
    family: str, changes: dict[str, Any]
) -> None:
    target = tiny.target(family, **changes)
    check = checker(target, gap(target, GREEDY))
    assert isinstance(check.theirs, OurBlocks)
    assert differences(check) == []
    assert all(number > 0 for number in check.closeness(PROMPTS[0], [5, 6, 7], 8, 9))


def test_mixed_windows_of_llama_are_mlx_lms_own() -> None:
    layers = {"sliding_window": 10, "layer_types": ["full_attention", "sliding_attention"] * 3}
    target = tiny.target("llama", **layers)
    check = checker(target, gap(target, GREEDY))
    kinds = [type(cache).__name__ for cache in make_prompt_cache(check.theirs)]
    assert kinds == ["KVCache", "RotatingKVCache"] * 3
    assert differences(check) == []


def test_a_nested_rope_reaches_the_reference() -> None:
    nested = {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0}}
    target = tiny.target("llama", **nested)
    assert differences(checker(target)) == []
    nested_text = checker(target).reference(PROMPTS[0])
    assert nested_text != checker(tiny.target()).reference(PROMPTS[0])
