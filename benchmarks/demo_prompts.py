"""Write the prompts the bundled bridges were trained on: a file of instructions, and requests made of a text corpus.

    python benchmarks/demo_prompts.py --instructions train.jsonl --corpus CORPUS_DIR --out prompts.jsonl

The requests have the kinds people send a chat model (summarise, answer from a passage, translate, explain, continue);
none of them is taken from a benchmark.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path

ON_PASSAGES = (
    "Summarize: {passage}",
    "Summarize the following text in two sentences.\n\n{passage}",
    "{passage}\nWhat is this passage about?",
    "{passage}\nWho or what is {name}?",
    "{passage}\n\nUsing only the text above, what does it say about {name}?",
    "Rewrite this text in simple words:\n\n{passage}",
    "List the main points of this text.\n\n{passage}",
)
ON_SENTENCES = (
    "Translate English to German: {sentence}",
    "Translate English to French: {sentence}",
    "Translate English to Spanish: {sentence}",
    "Correct the grammar of this sentence and explain: {sentence}",
    "Continue this story: {sentence}",
)
ON_NAMES = (
    "What is {name}?",
    "Who was {name} and why does it matter?",
    "Where does the name {name} come from?",
    "Write a short paragraph about {name}.",
    "When did {name} begin?",
    "How does {name} work?",
)


def requests(corpus: Path, count: int, chance: random.Random) -> list[str]:
    """`count` prompts from each of the three kinds."""
    text = "\n\n".join(file.read_text(encoding="utf-8") for file in sorted(corpus.glob("english/*")))
    passages = [" ".join(part.split()) for part in text.split("\n\n")]
    passages = [part for part in passages if 400 <= len(part) <= 1400]
    sentences = [s for part in passages for s in re.split(r"(?<=[.!?]) ", part) if 40 <= len(s) <= 160]
    names = sorted(set(re.findall(r"(?<=[a-z,] )(?:[A-Z][a-z]+ ){0,2}[A-Z][a-z]{3,}", text)))
    made = []
    for _ in range(count):
        passage = chance.choice(passages)
        name = chance.choice(re.findall(r"[A-Z][a-z]{3,}", passage) or ["it"])
        made.append(chance.choice(ON_PASSAGES).format(passage=passage, name=name))
        made.append(chance.choice(ON_SENTENCES).format(sentence=chance.choice(sentences)))
        made.append(chance.choice(ON_NAMES).format(name=chance.choice(names)))
    return made


def code(corpus: Path, count: int, chance: random.Random) -> list[str]:
    """Requests to complete a function, of which the head and the docstring are given."""
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(corpus.glob("code/*")))
    heads = re.findall(r'\ndef \w+\([^)]*\):\n    """[^"]{20,400}"""\n', text)
    return [f"Complete this Python function.\n{chance.choice(heads)}" for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instructions", required=True, type=Path)
    parser.add_argument("--corpus", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--count", type=int, default=500, help="requests of each of the three kinds")
    parser.add_argument("--code", type=int, default=0, help="requests to complete a function")
    parser.add_argument("--limit", type=int, help="keep so many of all")
    args = parser.parse_args()
    prompts = [json.loads(line)["prompt"] for line in args.instructions.open(encoding="utf-8")]
    prompts += requests(args.corpus, args.count, random.Random(0))
    prompts += code(args.corpus, args.code, random.Random(2))
    random.Random(1).shuffle(prompts)
    with args.out.open("w", encoding="utf-8") as out:
        for prompt in prompts[: args.limit]:
            out.write(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n")
    print(json.dumps({"prompts": len(prompts[: args.limit])}))


if __name__ == "__main__":
    main()
