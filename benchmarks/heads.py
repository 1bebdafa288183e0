"""Draft heads against the dense one: recall@1 on held-out hidden states, time of a choice, bytes, time to build.

    python benchmarks/heads.py --model MODEL [--text FILE…] [--kinds clusters subset ann] [--probes N…] [--out FILE]
    python benchmarks/heads.py --synthetic 151936x1024 …

The share of the dense head's time expected is the share of rows that are scored, centres included; what gathering,
ranking and drawing cost comes on top. With --probes the clusters are measured with each number of probes too. The
synthetic head is a tree: topics, words of a topic, forms of a word, norms of different size; states are drawn towards
tokens of Zipf's frequencies, more or less surely, with noise that is wider one way than the other. Last line of stdout:
JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mlx_skipspec.blas import with_openblas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--synthetic", metavar="VxD")
    parser.add_argument("--text", type=Path, nargs="*", default=[])
    parser.add_argument("--kinds", nargs="+", default=["clusters", "subset", "ann"])
    parser.add_argument("--probes", type=int, nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    blas = with_openblas()
    target, text = synthetic(args.synthetic) if args.synthetic else of_model(args)
    rows = [row for kind in args.kinds for row in measured(kind, target, text, args.probes)]
    name = args.synthetic or (args.model and Path(args.model).name) or "SmolLM2-135M-Instruct"
    result = {
        "head": name,
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "rows": rows,
        "blas": asdict(blas),
    }
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def of_model(args: argparse.Namespace) -> tuple[Any, Any]:
    from mlx_skipspec.convert.head_text import HeadText
    from mlx_skipspec.loading import read_weights
    from mlx_skipspec.opening import open_model

    target, tokenizer = open_model(args.model, args.dtype)
    read_weights(target)
    return target, HeadText(target, tokenizer, args.text)


def measured(kind: str, target: Any, text: Any, probes: list[int]) -> list[dict[str, Any]]:
    """One row for the head as it is built; for clusters one more for each number of probes."""
    from mlx_skipspec.convert.head_text import measure
    from mlx_skipspec.convert.heads import make
    from mlx_skipspec.head_choice import head_fingerprint, open_finder
    from mlx_skipspec.head_files import FILES, HeadFile
    from mlx_skipspec.head_measured import Measured
    from mlx_skipspec.heads import DenseHead, Shortlist

    with tempfile.TemporaryDirectory() as folder:
        path, started = Path(folder) / FILES[kind], time.perf_counter()
        settings, write = make(kind, target, text)
        write(path)
        seconds = time.perf_counter() - started
        head = HeadFile.of(kind, path, head_fingerprint(target), settings, Measured(0.0, 0, 0.0, 0.0, seconds))
        finder: Any = open_finder(target, head)
        found = []
        for count in [None, *probes] if kind == "clusters" else [None]:
            if count is not None:
                finder.probes = count
            expected = scored(kind, finder) / target.vocab_size
            print(f"{kind:9} expected {expected:6.1%} of the dense head's time", end="", flush=True)
            of = measure(Shortlist(target, finder), DenseHead(target.logits), text.queries(), seconds)
            share = of.seconds / of.dense_seconds
            print(
                f", measured {share:6.1%}: {1e3 * of.seconds:.2f} of {1e3 * of.dense_seconds:.2f} ms, "
                f"recall@1 {of.recall:.3f}, {head.bytes / 1e6:.1f} MB, built in {seconds:.0f} s"
                + (f", {finder.probes} probes of {len(finder.members)} clusters" if kind == "clusters" else "")
            )
            row = {name: value for name, value in asdict(of).items() if value}
            row |= {"kind": kind, "bytes": head.bytes, "share_of_rows": expected, "share_of_time": share}
            found.append(row | ({"probes": finder.probes} if kind == "clusters" else {}))
        return found


def scored(kind: str, finder: Any) -> int:
    """Rows a query is multiplied by; an index does not say how many it looks at, so its candidates only."""
    if kind == "clusters":
        return len(finder.members) + finder.probes * finder.members.shape[1]
    return len(finder._few) if kind == "subset" else finder.candidates


def synthetic(size: str) -> tuple[Any, Any]:
    """A head (V, D) and states in front of it, as `make` and `measure` read them of a model and its text."""
    import mlx.core as mx
    import numpy as np

    count, width = map(int, size.split("x"))
    random = np.random.default_rng(0)
    unit = width**-0.5
    topics, words = (random.normal(0, unit, (count // n, width)).astype(np.float32) for n in (512, 16))
    topic_of = random.integers(0, len(topics), len(words))
    word_of = random.integers(0, len(words), count)
    weight = 0.5 * topics[topic_of[word_of]] + 0.6 * words[word_of]
    for part in np.array_split(weight, 16):
        part += 0.6 * random.normal(0, unit, part.shape).astype(np.float32)
    weight *= np.exp(random.normal(0, 0.2, (count, 1))).astype(np.float32)
    spread = (1 + np.arange(width)) ** -0.4
    spread = random.permutation(spread / np.sqrt((spread**2).mean())).astype(np.float32)
    frequency = 1 / (10 + np.arange(count))
    frequency = random.permutation(frequency / frequency.sum())

    def tokens(n: int) -> np.ndarray:
        return random.choice(count, n, p=frequency)

    def states(n: int) -> np.ndarray:
        towards = weight[tokens(n)]
        towards /= np.linalg.norm(towards, axis=1, keepdims=True)
        surely = random.uniform(0.6, 1.4, (n, 1))
        return (10 * (surely * towards + 3 * unit * spread * random.normal(size=(n, width)))).astype(np.float32)

    head, held_out = mx.array(weight), mx.array(states(512))
    target = SimpleNamespace(
        vocab_size=count,
        hidden_size=width,
        dtype=mx.float32,
        normed=lambda h: h,
        score=lambda h, rows: h @ head[rows].T,
        logits=lambda h: h @ head.T,
        head_rows=lambda rows: head[rows],
    )
    text = SimpleNamespace(
        training=states(4096),
        calibrating=states(1024),
        counted=tokens(1 << 18).reshape(-1, 256),
        queries=lambda: [(held_out[None, i : i + 1], context) for i in range(len(held_out))],
    )
    context = tokens(256).tolist()
    return target, text


if __name__ == "__main__":
    main()
