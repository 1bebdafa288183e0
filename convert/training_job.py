"""From the options of `train-hvc` to its sidecars."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.convert import hub_data
from mlx_skipspec.convert.corpus import check_files, windows
from mlx_skipspec.convert.self_answers import self_answers
from mlx_skipspec.convert.teacher import Teacher
from mlx_skipspec.convert.training import Recipe
from mlx_skipspec.convert.training_run import HELD_OUT, Run, sidecar_of
from mlx_skipspec.convert.world import World
from mlx_skipspec.errors import SkipSpecError, one_line
from mlx_skipspec.folders import check_new
from mlx_skipspec.plan import SkipPlan, head_and_tail

STARTS = ("least-squares", "zero")
# Of the recipe, in the sidecar.
RECORDED = ("streams", "batch", "accumulate", "steps", "lr", "dropout", "sampled", "seed")


def train(
    *,
    model: str,
    plans: Sequence[str],
    out: Path,
    data: Sequence[str],
    self_generate: Path | None,
    answers: Path | None,
    answer_tokens: int,
    temperature: float,
    tokens: int,
    window: int,
    epochs: float,
    steps: int | None,
    rank: int,
    start: str,
    features: Path | None,
    checkpoint_minutes: float,
    dtype: str,
    batch: int,
    accumulate: int,
    seed: int,
    **rest: Any,
) -> None:
    """Train the bridges and write a sidecar for each plan.

    Raises:
        SkipSpecError: bad data, model or plan, a loss that is not finite, or no room to write.
    """
    for plan in plans:
        head_and_tail(plan)
    if len({*plans}) < len(plans):
        raise SkipSpecError(f"--plan {' --plan '.join(plans)} names one twice; need each once.")
    outs = [out if len(plans) == 1 else out.with_name(f"{out.name}-{plan.replace(',', '-')}") for plan in plans]
    for folder in outs:
        check_new(folder)
    files, datasets = sources(data, self_generate)
    if start not in STARTS and not Path(start).is_dir():
        raise SkipSpecError(f"--from {start} is no folder; need one of {', '.join(STARTS)}, or a sidecar's folder.")
    world = World.join()
    try:
        causal, tokenizer = _load(model, dtype, world.device)
        teacher = Teacher(causal)
        cuts = [SkipPlan.parse(plan, teacher.depth) for plan in plans]
        if self_generate is not None:
            answers = answers or out.with_name(f"{out.name}.answers.jsonl")
            self_answers(
                causal,
                tokenizer,
                self_generate,
                answers,
                world,
                max_tokens=answer_tokens,
                temperature=temperature,
                seed=seed,
            )
            world.wait()
            files.append(answers)
        text, scored = _read(files, datasets, tokenizer, window, tokens)
        world.note(f"{text.size} tokens, of which {scored.mean():.0%} are trained on")
        per_step = batch * accumulate * world.size
        recipe = Recipe(
            batch=batch,
            accumulate=accumulate,
            steps=steps or max(1, round(epochs * (len(text) - HELD_OUT) / per_step)),
            sampled=rest.pop("sampled_rows"),
            seed=seed,
            **rest,
        )
        about = {
            "base": hashlib.sha256(repr(teacher.base("").fingerprint).encode()).hexdigest()[:16],
            "plans": list(plans),
            "text": hashlib.sha256(text.tobytes() + scored.tobytes()).hexdigest()[:16],
            "start": start,
        }
        folder = out.with_name(f"{out.name}.training")
        run = Run(teacher, cuts, text, scored, recipe, world, folder, about, rank, features)
        run.read_ahead()
        run.begin(_start(start, teacher, cuts, rank))
        run.go(60 * checkpoint_minutes)
        after = run.agreement()
        if world.first:
            for plan, sidecar in zip(cuts, outs, strict=True):
                made_by = {
                    "method": f"unrolled training from {start if start in STARTS else Path(start).name}",
                    "text": [file.name for file in files] + list(datasets),
                    "tokens_read": int(text.size),
                    "tokens_scored": int(scored.sum()),
                    "tokens_trained_on": recipe.steps * per_step * window,
                    "start": {"acceptance_by_position": [round(x, 4) for x in run.before[plan.name]]},
                    **{name: getattr(recipe, name) for name in RECORDED},
                    "rank": rank,
                    "processes": world.size,
                }
                name = Path(model).name if Path(model).is_dir() else model
                sidecar_of(run, plan, name, made_by, after[plan]).save(sidecar)
                shares = " ".join(f"{x:.2f}" for x in after[plan])
                world.note(f"wrote {sidecar}: held-out agreement by draft position, given all before: {shares}")
    finally:
        world.leave()


def _load(model: str, dtype: str, device: torch.device) -> tuple[Any, Any]:
    """The frozen model and its tokenizer; bf16 on a GPU, fp32 on a CPU, unless told."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    kind = {"auto": torch.bfloat16 if device.type == "cuda" else torch.float32}.get(dtype) or getattr(torch, dtype)
    try:
        causal = AutoModelForCausalLM.from_pretrained(model, dtype=kind).to(device)
        return causal, AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise SkipSpecError(
            f"The model {model!r} cannot be loaded ({one_line(error)}); need a Hugging Face folder or hub id."
        ) from error


def _start(
    start: str, teacher: Teacher, plans: Sequence[SkipPlan], rank: int
) -> dict[SkipPlan, Mapping[str, np.ndarray]] | None:
    """The tensors to begin with; None for least squares.

    Raises:
        SkipSpecError: a folder that holds no sidecar for this model, plan and rank.
    """
    if start in STARTS:
        return None if start == "least-squares" else {}
    found = Sidecar.load(Path(start))
    found.base.check(teacher.base(""), start)
    gate = found.tensors.get("gate.weight")
    has = f"plan {found.head},{found.tail} and rank {0 if gate is None else len(gate)}"
    if [has] != [f"plan {plan.name} and rank {rank}" for plan in plans]:
        wanted = " ".join(plan.name for plan in plans)
        raise SkipSpecError(
            f"The sidecar {start} has {has}; asked for are {wanted} and {rank}. Give one --plan like it."
        )
    return {plans[0]: found.tensors}


def sources(data: Sequence[str], self_generate: Path | None) -> tuple[list[Path], list[str]]:
    """Which of `data` are files and which are datasets of the hub; the thesis's mix when nothing is given.

    Raises:
        SkipSpecError: a file is missing.
    """
    datasets = [name for name in data if hub_data.is_name(name) and not Path(name).exists()]
    files = [Path(name) for name in data if name not in datasets]
    check_files([*files, *([self_generate] if self_generate else [])])
    if not data and self_generate is None:
        datasets = list(hub_data.DEFAULT_MIX)
    return files, datasets


def _read(
    files: Sequence[Path], datasets: Sequence[str], tokenizer: Any, length: int, tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """(n, length) windows and their scored positions, in an order of their own, so that the held-out ones are of all
    kinds."""
    source = windows(files, tokenizer, length, {name: hub_data.items(name) for name in datasets})
    taken = itertools.islice(source, -(-tokens // length))
    found = [(np.array(window.ids, dtype=np.int32), np.array(window.scored)) for window in taken]
    if len(found) <= HELD_OUT:
        raise SkipSpecError(
            f"The text holds only {len(found)} windows of {length} tokens; need more than {HELD_OUT}, better thousands."
        )
    order = np.random.default_rng(len(found)).permutation(len(found))
    text, scored = (np.stack(arrays)[order] for arrays in zip(*found, strict=True))
    return text, scored
