"""What a run came to: for people and for machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from mlx_skipspec.api import Response
from mlx_skipspec.artifacts import Sidecar
from mlx_skipspec.conversation import Conversation
from mlx_skipspec.head_files import HeadFile
from mlx_skipspec.stats import Stats

FAIR = 20  # guessed tokens after which a drafter that was never right is named


def as_json(text: str, tokens: list[int], last: Response) -> dict[str, Any]:
    """The object `--json` prints; its keys are a contract (tests/test_contract.py)."""
    stats = last.stats
    return {
        "text": text,
        "tokens": tokens,
        "finish_reason": last.finish_reason,
        "mode": last.mode,
        "prompt_tokens": last.prompt_tokens,
        "generation_tokens": last.generation_tokens,
        "prompt_seconds": last.prompt_seconds,
        "generation_seconds": last.generation_seconds,
        "generation_tok_s": last.generation_tps,
        "peak_memory_bytes": round(last.peak_memory * 1e9),
        "passes": stats.passes,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "tokens_per_pass": stats.tokens_per_pass,
        "acceptance_by_position": stats.acceptance_by_position(),
        "by_source": stats.by_source(),
        "decisions": stats.decisions(),
    }


def summary(last: Response, dtype: object) -> str:
    """The compact block at the end of `generate`; `dtype` is what the target computed in."""
    stats = last.stats
    lines = [
        f"mode        {last.mode} ({str(dtype).rpartition('.')[2]})",
        f"prompt      {last.prompt_tokens} tokens, {last.prompt_tps:.1f} tok/s",
        f"generation  {last.generation_tokens} tokens, {last.generation_tps:.1f} tok/s, "
        f"{stats.tokens_per_pass:.2f} tokens per target pass",
        *draft_lines(stats),
        f"memory      {last.peak_memory:.2f} GB at most",
    ]
    return "\n".join(lines)


def draft_lines(stats: Stats) -> list[str]:
    """How the guesses fared; nothing where there were none."""
    if stats.acceptance is None or stats.share_from_draft is None:
        return []
    lines = [
        f"drafts      accepted/drafted {stats.accepted}/{stats.drafted} = {stats.acceptance:.2f}, "
        f"accepted/emitted {stats.from_draft}/{stats.tokens} = {stats.share_from_draft:.2f}",
        "            accepted at draft position 1, 2, … given all before: " + shares(stats.acceptance_by_position()),
    ]
    if not stats.accepted:
        lines.append("            no guess was accepted: this drafter only costs time here; try --drafter none")
    return lines + [
        f"            {name}: none of {drafted} guessed tokens was accepted" for name, drafted in collapsed(stats)
    ]


def status(last: Response, talk: Conversation) -> str:
    """The line behind an answer in a chat."""
    stats, context = last.stats, talk.target.args.max_position_embeddings
    used = last.prompt_tokens + last.generation_tokens
    of = f" of {context}" if talk.max_kv_size is None else f", the newest {talk.max_kv_size} seen"
    drafts = f"accepted/drafted {stats.accepted}/{stats.drafted}, " if stats.drafted else ""
    end = {None: "; stopped", "length": "; cut off: it was long enough"}.get(last.finish_reason, "")
    return (
        f"[{last.generation_tps:.1f} tok/s, {stats.tokens_per_pass:.2f} tokens per pass, {drafts}"
        f"context {used}{of}{end}]"
    )


def conversation_summary(talk: Conversation) -> str:
    """What `/stats` shows."""
    stats, kept = talk.stats, talk.kept
    lines = [
        f"mode        {talk.drafting.mode} ({str(talk.target.dtype).rpartition('.')[2]})",
        f"answers     {sum(message.role == 'assistant' for message in talk.messages)} kept; {stats.tokens} tokens "
        f"generated in {stats.passes} target passes, {stats.tokens_per_pass:.2f} tokens per pass",
        *draft_lines(stats),
        f"cache       {kept.kv.length} tokens, {kept.kv.nbytes / 1e6:.1f} MB; new in the last prompt: {kept.prefilled}",
    ]
    return "\n".join(lines)


def collapsed(stats: Stats) -> list[tuple[str, int]]:
    """Drafters that were given a fair chance and never right, and the tokens they guessed."""
    counts = ((name, of["drafted"], of["accepted"]) for name, of in stats.by_source().items())
    return [(name, drafted) for name, drafted, accepted in counts if drafted >= FAIR and not accepted]


def shares(values: Iterable[float | None]) -> str:
    """Shares by draft position; `-` where nothing was drafted."""
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def sidecar_json(sidecar: Sidecar) -> dict[str, Any]:
    """The object `inspect --json` prints; its keys are a contract."""
    return {
        "base": sidecar.base.name,
        "layers": sidecar.base.depth,
        "hidden_size": sidecar.base.hidden_size,
        "vocab_size": sidecar.base.vocab_size,
        "plan": f"{sidecar.head},{sidecar.tail}",
        "kind": sidecar.kind,
        "parameters": sum(value.size for value in sidecar.tensors.values()),
        "bytes": sum(value.nbytes for value in sidecar.tensors.values()),
        "made_by": dict(sidecar.made_by),
        "acceptance_by_position": list(sidecar.acceptance_by_position),
        "heads": {kind: asdict(head.measured) | {"bytes": head.bytes} for kind, head in sidecar.heads.items()},
    }


def sidecar_summary(sidecar: Sidecar) -> str:
    """What `inspect` prints: whose bridge it is, how it was made, how well it drafts."""
    about = sidecar_json(sidecar)
    made_by = about["made_by"]
    start = made_by.pop("start", {}).get("acceptance_by_position")
    lines = [
        f"base        {about['base'] or 'unnamed'}: {about['layers']} layers, hidden {about['hidden_size']}, "
        f"vocabulary {about['vocab_size']}",
        f"bridge      {about['kind']}, plan {about['plan']}, {about['parameters']} parameters, "
        f"{about['bytes'] / 1e6:.1f} MB",
        *(f"{key:<11} {', '.join(map(str, v)) if isinstance(v, list) else v}" for key, v in made_by.items()),
        f"accepted    {shares(about['acceptance_by_position'])} at draft position 1, 2, … given all before "
        "(held-out text)",
    ]
    if start:
        lines.append(f"            {shares(start)} at the start of its training")
    lines += [f"head        {head_summary(head)}" for head in sidecar.heads.values()]
    return "\n".join(lines)


def head_summary(head: HeadFile) -> str:
    """A draft head in one line: how often it finds the dense head's token, and at what price."""
    of = head.measured
    return (
        f"{head.kind}: recall {of.recall:.3f} of {of.queries}, {1e3 * of.seconds:.2f} ms a token "
        f"({of.seconds / of.dense_seconds:.0%} of the dense head's), {head.bytes / 1e6:.1f} MB, "
        f"built in {of.build_seconds:.0f} s"
    )
