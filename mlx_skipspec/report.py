"""What a run came to: for people and for machines."""

from __future__ import annotations

from typing import Any

from mlx_skipspec.api import Response


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
    }


def summary(last: Response, dtype: object) -> str:
    """The compact block at the end of `generate`; `dtype` is what the target computed in."""
    stats = last.stats
    lines = [
        f"mode        {last.mode} ({str(dtype).rpartition('.')[2]})",
        f"prompt      {last.prompt_tokens} tokens, {last.prompt_tps:.1f} tok/s",
        f"generation  {last.generation_tokens} tokens, {last.generation_tps:.1f} tok/s, "
        f"{stats.tokens_per_pass:.2f} tokens per target pass",
    ]
    if stats.acceptance is not None and stats.share_from_draft is not None:
        positions = " ".join("-" if share is None else f"{share:.2f}" for share in stats.acceptance_by_position())
        lines += [
            f"drafts      accepted/drafted {stats.accepted}/{stats.drafted} = {stats.acceptance:.2f}, "
            f"accepted/emitted {stats.from_draft}/{stats.tokens} = {stats.share_from_draft:.2f}",
            f"            accepted at draft position 1, 2, … given all before: {positions}",
        ]
        if not stats.accepted:
            lines.append("            no guess was accepted: this drafter only costs time here; try --drafter none")
    lines.append(f"memory      {last.peak_memory:.2f} GB at most")
    return "\n".join(lines)
