"""The torch and MLX twins of unrolled training give the same losses and gradients on the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import bare_checkpoint  # noqa: E402

from mlx_skipspec.artifacts import Sidecar  # noqa: E402
from mlx_skipspec.convert import hvc_torch, training, unroll_mlx  # noqa: E402
from mlx_skipspec.convert.objective import conditional, whole  # noqa: E402
from mlx_skipspec.convert.teacher import Teacher  # noqa: E402
from mlx_skipspec.hvc import HVC  # noqa: E402
from mlx_skipspec.loading import base_of, load_target  # noqa: E402
from mlx_skipspec.plan import SkipPlan  # noqa: E402

LENGTH, STREAMS, WINDOW = 24, 3, 7
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None},
    "mistral with a window": {"sliding_window": WINDOW},
    "qwen3": {"head_dim": 32},
    "qwen3 with mixed layers": {"head_dim": 16, "use_sliding_window": True, "layer_types": bare_checkpoint.MIXED},
}
CASES["qwen3 with mixed layers"]["sliding_window"] = WINDOW
IDS = np.random.default_rng(3).integers(0, bare_checkpoint.VOCAB, (2, LENGTH))
SCORED = np.random.default_rng(4).random(IDS.shape) < np.array([[0.9], [0.6]])  # of windows that differ in how many
ROWS = np.array([5, 9, *range(20, 60)]), np.linspace(0, 2, 42).astype(np.float32)


class Both:
    """A model and a bridge with random numbers, in both runtimes; the bridge went through a sidecar's folder."""

    def __init__(self, folder: Path, name: str, plan: tuple[int, int], rank: int) -> None:
        config = {"model_type": name.split()[0], **bare_checkpoint.SIZES, **CASES[name]}
        bare_checkpoint.write(folder / "model", config)
        self.target = load_target(folder / "model", "float32")
        self.teacher = Teacher(transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32))
        self.plan = SkipPlan.gap(self.target.depth, *plan)
        torch.manual_seed(1)
        self.torch_bridge = hvc_torch.HVC(self.target.hidden_size, rank)
        for parameter in self.torch_bridge.parameters():
            parameter.data = (parameter + 0.05 * torch.randn(parameter.shape)).half().float()  # as the file holds them
        base = base_of(self.target)
        assert self.teacher.base("").likeness(base) > 0.999
        kind = "hvc-mlp" if rank else "hvc"
        Sidecar(base, *plan, tensors=self.torch_bridge.tensors(), kind=kind).save(folder / "sidecar")
        self.bridge = HVC.from_tensors(Sidecar.load(folder / "sidecar").tensors)

    def torch_losses(self) -> tuple[list[float], dict[str, np.ndarray], list[float]]:
        """As the trainer computes them: at the scored positions only."""
        teacher, plan = self.teacher, self.plan
        scored = torch.from_numpy(SCORED)
        features = teacher.features(torch.from_numpy(IDS), scored, [plan.skipped.start], len(plan.after), 4)
        hidden = training.student_streams(teacher, plan, self.torch_bridge, features, STREAMS)
        total = [int(whole(SCORED, s).sum()) for s in range(1, STREAMS + 1)]
        leaves = [h.detach().requires_grad_() for h in hidden]
        found = training.report(training.score(teacher, features, leaves, ROWS, total)[0])
        torch.autograd.backward(hidden, [leaf.grad for leaf in leaves])
        gradients = {name: p.grad.numpy() for name, p in self.torch_bridge.named_parameters()}
        return found["loss"], gradients, found["top1"]

    def mlx_losses(self) -> tuple[list[float], dict[str, np.ndarray], list[float]]:
        """Everywhere, and from that the scored positions."""
        target, plan = self.target, self.plan
        h, states = target.embed(mx.array(IDS).flatten()).reshape(*IDS.shape, -1), []
        for i in target.layers:  # a fresh cache for each layer and window: no code of the streams' own
            states.append(h)
            h = mx.concatenate([target.run(row[None], [i], target.make_kv()) for row in h])
        rows = [target.block(i).rows(states[i])[1:] for i in plan.after]
        head = mx.eye(target.vocab_size)[mx.array(ROWS[0])].T

        def losses(bridge: HVC) -> tuple[mx.array, list[mx.array], mx.array]:
            x = states[len(plan.before)]
            hidden = unroll_mlx.streams(bridge, target, list(plan.after), rows, x, h, STREAMS)
            pairs = [
                unroll_mlx.divergence(target.logits(s) @ head, target.logits(h) @ head, mx.array(ROWS[1]))
                for s in hidden
            ]
            meant = [mx.array(whole(SCORED, s)) for s in range(1, STREAMS + 1)]
            found = [(loss * there).sum() / there.sum() for (loss, _), there in zip(pairs, meant, strict=True)]
            return sum(0.8**s * loss for s, loss in enumerate(found)), found, mx.stack([hit for _, hit in pairs])

        (_, found, hits), gradients = nn.value_and_grad(self.bridge, losses)(self.bridge)
        return (
            [loss.item() for loss in found],
            {name: np.array(value) for name, value in tree_flatten(gradients)},
            conditional(np.array(hits), SCORED),
        )


@pytest.mark.parametrize("rank", [0, 12])
@pytest.mark.parametrize("plan", [(1, 1), (1, 2), (2, 0)])
@pytest.mark.parametrize("name", CASES)
def test_both_runtimes_give_the_same_losses_gradients_and_agreement(
    name: str, plan: tuple[int, int], rank: int, tmp_path: Path
) -> None:
    both = Both(tmp_path, name, plan, rank)
    (torchs, torch_gradients, torch_hits), (mlxs, mlx_gradients, mlx_hits) = both.torch_losses(), both.mlx_losses()
    np.testing.assert_allclose(torchs, mlxs, rtol=1e-4)
    assert torch_gradients.keys() == mlx_gradients.keys()
    for key, gradient in torch_gradients.items():
        np.testing.assert_allclose(gradient, mlx_gradients[key], atol=2e-4 * np.abs(gradient).max(), err_msg=key)
        assert np.abs(gradient).max() > 1e-6
    np.testing.assert_allclose(torch_hits, mlx_hits, rtol=1e-6)
