"""What a step asks of the device: its primitives, counted in the graph that MLX exports, beside mlx-lm's plain step.

    python benchmarks/graph.py [--model MODEL] [--dtype auto] [--plan HEAD,TAIL] [--draft-tokens 3]

On a GPU a primitive is a kernel, or a few, unless it only looks at its input in another way (a view). Counted as there:
MLX's fast functions are one primitive each, and a draft head's rows are scored in one piece. A Flatten of several rows'
heads copies, for mlx-lm as for us; a Concatenate is one copy for each part.

Expected: a plain step is mlx-lm's less its log-probabilities, two kernels, which we compute only where somebody reads
them; a verify is that and two concatenations, the tokens to run and the answer to read; a draft step is its layers, its
bridge and its head. Draft heads are made of random numbers, their graph is that of built ones. Last line of stdout:
JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    import mlx.core as mx

    from mlx_skipspec.drafters import LayerSkip
    from mlx_skipspec.heads import Head
    from mlx_skipspec.kv import KV
    from mlx_skipspec.target import Target

FAST = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm", "rope": "RoPE", "scaled_dot_product_attention": "Attention"}
VIEWS = {"Broadcast", "ExpandDims", "Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unflatten"}
CONTEXT = tuple(range(1, 33))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--plan", help="default: that of the model's sidecar")
    parser.add_argument("--draft-tokens", type=int, default=3)
    args = parser.parse_args()

    from mlx_skipspec.drafters import LayerSkip
    from mlx_skipspec.drafting import choose_drafter
    from mlx_skipspec.opening import open_model

    target, _ = open_model(args.model, args.dtype)
    skip = choose_drafter(target, "skip", plan=args.plan, head="dense")
    drafter = skip.unpaced
    assert isinstance(drafter, LayerSkip)
    found = {"mlx-lm": theirs(target), "plain": ours(target), "verify": ours(target, args.draft_tokens)}
    for kind, head in {"dense": None, **random_heads(target)}.items():
        found[f"draft, {kind}"] = draft(target, LayerSkip(drafter.plan, drafter.bridge, head))
    print(f"{target.depth} layers, {skip.mode}, verify of {args.draft_tokens + 1} tokens")
    print(f"expected: plain {kernels(found['mlx-lm']) - 2} kernels, verify {kernels(found['mlx-lm'])}")
    print(table(found))
    result = {"mode": skip.mode, "depth": target.depth, "kernels": {name: kernels(of) for name, of in found.items()}}
    print(json.dumps({**result, "primitives": {name: dict(sorted(of.items())) for name, of in found.items()}}))


def kernels(counts: Counter[str]) -> int:
    """Primitives that are no views."""
    return sum(n for kind, n in counts.items() if kind not in VIEWS)


class OnGpu:
    """Counts what is built inside `with`; a fast function cuts the graph there, an evaluated array stands in for it."""

    def __enter__(self) -> OnGpu:
        import mlx.core as mx

        self.calls: Counter[str] = Counter()
        self.inputs: list[mx.array] = []
        self.patches = [patch.object(mx, "default_device", lambda: mx.Device(mx.gpu))]
        self.patches += [patch.object(mx.fast, name, self.cut(kind)) for name, kind in FAST.items()]
        self.patches += [patch.object(mx, "async_eval", lambda *_: None)]  # what is evaluated is no graph any more
        for each in self.patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.patches:
            each.stop()

    def cut(self, kind: str) -> Any:
        import mlx.core as mx

        def fast(x: mx.array, *args: Any, **options: Any) -> mx.array:
            given = (x, *args, *options.values())
            self.calls[kind] += 1
            self.inputs += [part for part in given if isinstance(part, mx.array)]
            out = mx.zeros(x.shape, x.dtype)
            mx.eval(out)
            return out

        return fast

    def count(self, *outputs: mx.array) -> Counter[str]:
        import mlx.core as mx

        dot = io.StringIO()
        mx.export_to_dot(dot, *self.inputs, *outputs)
        return self.calls + Counter(re.findall(r'label ="(\w+)"', dot.getvalue()))


def theirs(target: Target) -> Counter[str]:
    """A plain step as mlx_lm.generate.generate_step makes it."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from mlx_skipspec.check import mlx_lm_model

    model = mlx_lm_model(target)
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([CONTEXT[:-1]]), cache=cache), [layer.state for layer in cache])
    last = mx.array(CONTEXT[-1:])
    with OnGpu() as device:
        logits = model(last[None], cache=cache)[:, -1, :]
        logprobs = logits - mx.logsumexp(logits, keepdims=True)
        return device.count(mx.argmax(logprobs, axis=-1), logprobs.squeeze(0))


def ours(target: Target, guessed: int = 0) -> Counter[str]:
    """A pass of our loop over the last token and `guessed` more."""
    import mlx.core as mx

    from mlx_skipspec.passes import Passes
    from mlx_skipspec.sampling import GREEDY

    passes = Passes(target, filled(target), GREEDY)
    with OnGpu() as device:
        return device.count(passes.next(CONTEXT, mx.array(CONTEXT[:guessed], dtype=mx.uint32)).answer)


def draft(target: Target, drafter: LayerSkip) -> Counter[str]:
    """One draft step."""
    import mlx.core as mx

    kv = filled(target)
    drafter.begin(target, kv)
    state = mx.zeros((1, 1, target.hidden_size), target.dtype)
    mx.eval(state)
    drafter.observe(state)
    with OnGpu() as device:
        token, _ = next(drafter.tokens(CONTEXT, 1))  # how probable it is costs three more where the pace looks
        return device.count(token)


def filled(target: Target) -> KV:
    """A cache of all CONTEXT but its last token."""
    import mlx.core as mx

    kv = target.make_kv()
    target.prefill(mx.array(CONTEXT[:-1]), kv)
    return kv


def random_heads(target: Target) -> dict[str, Head]:
    """A head of each lazy kind, as it would be built but for its numbers."""
    import mlx.core as mx
    import numpy as np

    from mlx_skipspec.heads import Clusters, Shortlist, Subset

    size = target.vocab_size
    members = mx.arange(size - size % 16, dtype=mx.uint32).reshape(-1, 16)
    centres = mx.random.normal((len(members), target.hidden_size)).astype(target.dtype)
    clusters = Clusters(members, centres, mx.zeros(len(members), target.dtype), probes=max(len(members) // 64, 2))
    mx.eval(members, clusters.clusters.parameters())
    subset = Subset(np.arange(0, size, 4), size)
    return {"clusters": Shortlist(target, clusters), "subset": Shortlist(target, subset)}


def table(found: dict[str, Counter[str]]) -> str:
    def line(name: str, numbers: list[int]) -> str:
        return f"{name[:26]:26}" + "".join(f"{number:>16}" for number in numbers)

    kinds = sorted(set().union(*found.values()), key=lambda kind: (kind in VIEWS, kind))
    lines = [" " * 26 + "".join(f"{name:>16}" for name in found)]
    lines += [line(kind + " (view)" * (kind in VIEWS), [of[kind] for of in found.values()]) for kind in kinds]
    return "\n".join([*lines, line("kernels", [kernels(of) for of in found.values()])])


if __name__ == "__main__":
    main()
