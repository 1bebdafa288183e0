"""Write the prompts the bundled bridges were trained on: a file of instructions, and requests made of a text corpus.

    python benchmarks/demo_prompts.py --instructions train.jsonl --corpus CORPUS_DIR --out prompts.jsonl

The requests have the kinds people send a chat model (summarise, answer from passages, translate, explain, write),
worded as in `demo_requests.json`; some as Spec-Bench words its own ("Summarize: …"), none is taken from a benchmark.
`demo_text.py` writes what the kinds `news`, `retrieval` and `german` need.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

WORDS = json.loads(Path(__file__).with_name("demo_requests.json").read_text(encoding="utf-8"))
NAME = re.compile(r"(?<=[a-z,] )(?:[A-Z][a-z]+ ){0,2}[A-Z][a-z]{3,}")


class Requests:
    """Made from the texts under a folder, drawn by `chance`."""

    def __init__(self, corpus: Path, chance: random.Random) -> None:
        self.corpus, self.chance = corpus, chance
        self.kinds: dict[str, Callable[[], str]] = {
            "passages": lambda: self._on_passage(self.chance.choice(self._passages())),
            "sentences": lambda: self._pick("sentence", sentence=self.chance.choice(self._sentences())),
            "names": lambda: self._pick("name", name=self.chance.choice(self._names())),
            "code": lambda: "Complete this Python function.\n" + self.chance.choice(self._heads()),
            "math": lambda: self.chance.choice(self._questions()),
            "german": lambda: self._pick("german", sentence=self.chance.choice(self._lines("german"))),
            "news": self._news,
            "retrieval": self._retrieval,
            "long": self._long,
            "topics": self._topics,
        }

    def make(self, kind: str, count: int) -> list[str]:
        """`count` prompts of a kind, no two alike."""
        found: dict[str, None] = {}
        for _ in range(20 * count):
            if len(found) == count:
                break
            found[self.kinds[kind]()] = None
        return list(found)

    def _pick(self, about: str, **words: str) -> str:
        return str(self.chance.choice(WORDS[about])).format(**words)

    def _on_passage(self, passage: str) -> str:
        return self._pick("passage", passage=passage, name=self._name_in(passage))

    def _news(self) -> str:
        """Some sentences of an article, mostly to be summarised."""
        sentences = re.split(r"(?<=[.!?]) ", self.chance.choice(self._lines("news")))
        first = self.chance.randrange(max(len(sentences) - 3, 1))
        part = " ".join(sentences[first : first + self.chance.randint(3, 9)])
        return f"Summarize: {part}" if self.chance.random() < 0.7 else self._on_passage(part)

    def _retrieval(self) -> str:
        """Neighbouring paragraphs of an encyclopedia and a question about a name in them."""
        paragraphs = self._lines("encyclopedia")
        first = self.chance.randrange(len(paragraphs) - 4)
        found = "\n".join(paragraphs[first : first + self.chance.randint(1, 3)])[:1600]
        return found + "\n" + self._pick("retrieval", name=self._name_in(found))

    def _long(self) -> str:
        """Many neighbouring paragraphs, to be summarised or asked about: 240 to 1 400 tokens."""
        paragraphs = self._lines("encyclopedia") if self.chance.random() < 0.7 else self._lines("news")
        start, length = self.chance.randrange(len(paragraphs) - 40), self.chance.randint(1200, 5200)
        found = " ".join(paragraphs[start : start + 40])[:length].rpartition(" ")[0]
        if self.chance.random() < 0.6:
            return f"Summarize: {found}"
        return found + "\n" + self._pick("retrieval", name=self._name_in(found))

    def _topics(self) -> str:
        topic, other = self.chance.sample(WORDS["topics"], 2)
        return self._pick("topic", topic=topic, other=other, person=self.chance.choice(WORDS["people"]))

    def _name_in(self, passage: str) -> str:
        return self.chance.choice(re.findall(r"[A-Z][a-z]{3,}", passage) or ["it"])

    @cache  # noqa: B019  one object lives as long as the program
    def _text(self, folder: str, between: str = "\n\n") -> str:
        return between.join(file.read_text(encoding="utf-8") for file in sorted(self.corpus.glob(f"{folder}/*")))

    @cache  # noqa: B019
    def _lines(self, folder: str) -> list[str]:
        return self._text(folder, "").splitlines()

    @cache  # noqa: B019
    def _passages(self) -> list[str]:
        parts = (" ".join(part.split()) for part in self._text("english").split("\n\n"))
        return [part for part in parts if 400 <= len(part) <= 1400]

    @cache  # noqa: B019
    def _sentences(self) -> list[str]:
        return [s for part in self._passages() for s in re.split(r"(?<=[.!?]) ", part) if 40 <= len(s) <= 160]

    @cache  # noqa: B019
    def _names(self) -> list[str]:
        return sorted({name for folder in ("english", "encyclopedia") for name in NAME.findall(self._text(folder))})

    @cache  # noqa: B019
    def _questions(self) -> list[str]:
        return re.findall(r"Question: (.+)", self._text("qa"))

    @cache  # noqa: B019
    def _heads(self) -> list[str]:
        return re.findall(r'\ndef \w+\([^)]*\):\n    """[^"]{20,400}"""\n', self._text("code"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instructions", type=Path, help="a JSONL file of prompts, taken whole")
    parser.add_argument("--corpus", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--make", action="append", default=[], metavar="KIND=COUNT", help="requests of a kind")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    requests, prompts = Requests(args.corpus, random.Random(args.seed)), []
    if args.instructions:
        prompts = [json.loads(line)["prompt"] for line in args.instructions.open(encoding="utf-8")]
    for kind, count in (item.split("=") for item in args.make):
        prompts += requests.make(kind, int(count))
    random.Random(args.seed).shuffle(prompts)
    with args.out.open("w", encoding="utf-8") as out:
        for prompt in prompts:
            out.write(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n")
    print(json.dumps({"prompts": len(prompts)}))


if __name__ == "__main__":
    main()
