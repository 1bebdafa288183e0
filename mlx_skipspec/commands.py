"""What the commands of the command line do, once the model may be loaded."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mlx_skipspec import opening
from mlx_skipspec.api import check_ids, check_options, encode, stream_generate
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.check import DIVERGED, Checker
from mlx_skipspec.check import as_json as check_json
from mlx_skipspec.cli import note, say
from mlx_skipspec.drafting import Drafting, check_choice, choose_drafter, find_sidecar
from mlx_skipspec.errors import SkipSpecError
from mlx_skipspec.folders import check_new
from mlx_skipspec.hvc import HVC
from mlx_skipspec.loading import base_of, read_weights
from mlx_skipspec.opening import encoder, make_kv, open_cache, take_drafting, take_sampler, take_template
from mlx_skipspec.plan import SkipPlan, head_and_tail
from mlx_skipspec.prompt_cache import beginning, fill
from mlx_skipspec.prompt_cache_files import check_cache_file
from mlx_skipspec.prompt_cache_files import save as save_cache
from mlx_skipspec.prompts import chat_ids, read_prompt, read_prompts
from mlx_skipspec.report import as_json, head_summary, shares, sidecar_json, sidecar_summary, summary
from mlx_skipspec.sampling import Sampler
from mlx_skipspec.target import Target, check_kv_format


def generate(
    model: str | None,
    dtype: str,
    prompt: str,
    system_prompt: str | None,
    ignore_chat_template: bool,
    think: bool | None,
    drafter: str,
    prompt_cache_file: Path | None,
    as_json: bool,
    **rest: Any,
) -> None:
    check_choice(drafter, rest["plan"], rest["sidecar"], rest["head"])
    template, sampler, guessing = take_template(rest, think), take_sampler(rest), take_drafting(rest)
    check_options(**rest)
    text = read_prompt(prompt)
    target, tokenizer = opening.open_model(model, dtype)
    cache, system_prompt = open_cache(prompt_cache_file, target, rest, system_prompt)
    drafting = choose_drafter(target, drafter, sampler=sampler, **guessing)
    encode = encoder(tokenizer, ignore_chat_template, system_prompt, template, think)
    ids = encode(cache.prompt + text if cache else text)
    if cache:
        rest["kv"] = cache.begin(ids)
        note(f"prompt cache: {rest['kv'].length} of {len(cache.ids)} tokens serve")
    _answer(target, tokenizer, ids, drafting, sampler, as_json, rest)


def cache_prompt(
    model: str | None,
    dtype: str,
    prompt: str,
    system_prompt: str | None,
    ignore_chat_template: bool,
    think: bool | None,
    prompt_cache_file: Path,
    prefill_step_size: int,
    **rest: Any,
) -> None:
    template = take_template(rest, think)
    check_kv_format(rest["kv_bits"], rest["kv_group_size"])
    check_cache_file(prompt_cache_file)
    if not (prompt or system_prompt):
        raise SkipSpecError("There is nothing to prefill; need --prompt or --system-prompt.")
    text = read_prompt(prompt) if prompt else ""
    target, tokenizer = opening.open_model(model, dtype)
    encode = encoder(tokenizer, ignore_chat_template, system_prompt, template, think)
    same = beginning(encode, text)
    check_ids(target, same, rest["max_kv_size"])
    read_weights(target)
    with _prefill_bar(len(same)) as progress:
        kv = make_kv(target, rest)
        cache = fill(target, same, kv, prefill_step_size, progress, system=system_prompt, prompt=text)
    save_cache(cache, target, prompt_cache_file)
    size = prompt_cache_file.stat().st_size
    note(f"wrote {prompt_cache_file}: the cache of {len(same)} tokens, {size / 1e6:.1f} MB")


def _answer(
    target: Target, tokenizer: Any, ids: list[int], drafting: Drafting, sampler: Sampler, json_wanted: bool, rest: Any
) -> None:
    pieces, tokens, last = [], [], None
    with _prefill_bar(len(ids)) as progress, contextlib.suppress(KeyboardInterrupt):
        for last in stream_generate(
            target, tokenizer, ids, drafting=drafting, sampler=sampler, prompt_progress_callback=progress, **rest
        ):
            pieces.append(last.text)
            tokens.append(last.token)
            if not json_wanted:
                say(last.text, nl=False)
    if last is None:
        raise KeyboardInterrupt
    if json_wanted:
        say(json.dumps(as_json(("").join(pieces), tokens, last), ensure_ascii=False))
    else:
        say("")
    note(summary(last, target.dtype))
    if last.finish_reason is None:
        raise KeyboardInterrupt


def check(
    model: str | None,
    dtype: str,
    prompts: Path,
    limit: int | None,
    max_tokens: int,
    drafter: str,
    draft_tokens: int,
    plan: str | None,
    sidecar: Path | None,
    head: str,
    max_kv_size: int | None,
    as_json: bool,
) -> None:
    check_choice(drafter, plan, sidecar, head)
    items = list(read_prompts(prompts, limit))
    target, tokenizer = opening.open_model(model, dtype)
    drafting = choose_drafter(target, drafter, plan=plan, sidecar=sidecar, head=head)
    checker = Checker(
        target,
        drafting.unpaced,
        eos=tokenizer.eos_token_ids,
        draft_tokens=draft_tokens,
        max_tokens=max_tokens,
        max_kv_size=max_kv_size,
    )
    differences = []
    encoded = [
        (name, chat_ids(tokenizer, prompt) if tokenizer.has_chat_template else encode(tokenizer, prompt))
        for name, prompt, _ in items
    ]
    for _, ids in encoded:
        check_ids(target, ids, max_kv_size)
    read_weights(target)
    for name, ids in tqdm(encoded, unit="prompt", desc=f"mode {drafting.mode}", disable=None):
        differences += checker.compare(name, ids)
    result = check_json(len(items), differences) | {"mode": drafting.mode}
    if as_json:
        say(json.dumps(result))
    else:
        say(
            f"{result['identical']}/{result['prompts']} identical to mlx-lm, {result['near_ties']} near-ties, "
            f"{result['diverged']} diverged (mode {drafting.mode})"
        )
        for d in differences:
            gap = "one text goes on" if d.gap is None else f"logits {d.gap:.2e} apart, a near-tie up to {d.bound:.2e}"
            say(f"  {d.prompt}, {d.run}: token {d.position} is {d.ours}, mlx-lm's {d.theirs}; {gap}: {d.verdict}")
    if any(d.verdict == DIVERGED for d in differences):
        sys.exit(1)


def fit(
    model: str | None, dtype: str, plan: str, text: tuple[Path, ...], tokens: int, minutes: float, out: Path
) -> None:
    from mlx_skipspec.convert.fit import check_request
    from mlx_skipspec.convert.fit import fit as run

    head_and_tail(plan)
    check_request(out, tokens, text)
    target, tokenizer = opening.open_model(model, dtype)
    made = run(
        target,
        tokenizer,
        SkipPlan.parse(plan, target.depth),
        out,
        files=text,
        tokens=tokens,
        minutes=minutes,
        name=model or "SmolLM2-135M-Instruct",
    )
    if "start" in made.made_by:
        note(f"accepted in closed form: {shares(made.made_by['start']['acceptance_by_position'])}")
    note(f"wrote {out}: accepted {shares(made.acceptance_by_position)} (held-out text, greedy)")


def build_head(model: str | None, dtype: str, kind: str, text: tuple[Path, ...], out: Path) -> None:
    from mlx_skipspec.convert.corpus import check_files
    from mlx_skipspec.convert.heads import build_head as run

    check_files(text)
    sidecar = Sidecar.load(out) if os.path.lexists(out) else None
    if sidecar is None:
        check_new(out)
    target, tokenizer = opening.open_model(model, dtype)
    if sidecar is not None:
        sidecar.base.check(base_of(target), str(out))
    elif (sidecar := find_sidecar(target)) is None:
        raise SkipSpecError(
            f"{out} is no sidecar and this model has none to copy. Make one: mlx-skipspec fit --out {out}."
        )
    HVC.from_tensors(sidecar.tensors, hidden_size=target.hidden_size)
    read_weights(target)
    note(head_summary(run(target, tokenizer, kind, sidecar, out, text)))


def inspect(sidecar: Path, as_json: bool) -> None:
    found = Sidecar.load(sidecar)
    HVC.from_tensors(found.tensors)
    say(json.dumps(sidecar_json(found), ensure_ascii=False) if as_json else sidecar_summary(found))


@contextlib.contextmanager
def _prefill_bar(total: int) -> Any:
    """A bar for prompts long enough to wait for."""
    with tqdm(total=total, unit="tok", desc="prompt", disable=total < 512 or None, leave=False) as bar:
        yield lambda done, _: bar.update(done - bar.n)
        bar.close()
