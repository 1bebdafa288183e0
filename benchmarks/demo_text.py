"""Lay out the text that `demo_prompts.py` asks about, one passage or sentence a line, from packages anybody can fetch.

    pip download --no-deps gensim==4.4.0 && unzip gensim-4.4.0*.whl -d WHEEL
    apt-get download trans-de-en fortunes-de && for f in *.deb; do dpkg-deb -x $f DEBS; done
    python benchmarks/demo_text.py --wheel WHEEL --debs DEBS --out CORPUS_DIR

Writes `news/` (300 articles of Australia's ABC), `encyclopedia/` (paragraphs of Wikipedia) and `german/` (example
sentences of a dictionary, quotations). Needs `pip install mwparserfromhell`.
"""

from __future__ import annotations

import argparse
import bz2
import re
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

import mwparserfromhell

SHORTEST, LONGEST = 40, 220  # characters of a German sentence
WIKIPEDIA = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def encyclopedia(dump: Path) -> Iterable[str]:
    """Paragraphs of plain prose, in the order of the dump."""
    with bz2.open(dump) as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag.endswith("}text") and element.text and not element.text.startswith("#"):
                plain = mwparserfromhell.parse(element.text).strip_code()
                for paragraph in plain.split("\n"):
                    if 200 <= len(paragraph) <= 1200 and paragraph[0].isalpha() and "|" not in paragraph:
                        yield " ".join(paragraph.split())
                element.clear()


def examples(dictionary: Path) -> Iterable[str]:
    """German sentences and longer phrases of the dictionary's examples."""
    for line in dictionary.read_text(encoding="utf-8").splitlines():
        if "::" in line and not line.startswith("#"):
            for phrase in line.split("::")[0].split("|")[1:]:
                if SHORTEST <= len(phrase.strip()) <= LONGEST and not re.search(r"[{}\[\]/<>;]", phrase):
                    yield phrase.strip()


def quotations(folder: Path) -> Iterable[str]:
    for file in sorted(folder.glob("*.u8")):
        for entry in file.read_text(encoding="utf-8", errors="ignore").split("\n%"):
            text = " ".join(entry.split("--")[0].split())
            if SHORTEST <= len(text) <= LONGEST and text[0].isalpha():
                yield text


def write(lines: Iterable[str], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    unique = list(dict.fromkeys(lines))
    file.write_text("\n".join(unique) + "\n", encoding="utf-8")
    print(file, len(unique), "lines")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", required=True, type=Path, help="gensim's, unpacked")
    parser.add_argument("--debs", required=True, type=Path, help="trans-de-en and fortunes-de, unpacked")
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    data = args.wheel / "gensim/test/test_data"
    articles = (data / "lee_background.cor").read_text(encoding="utf-8", errors="ignore").splitlines()
    write((" ".join(a.split()) for a in articles), args.out / "news" / "abc.txt")
    write(encyclopedia(data / WIKIPEDIA), args.out / "encyclopedia" / "wikipedia.txt")
    write(examples(args.debs / "usr/share/trans/de-en"), args.out / "german" / "dictionary.txt")
    write(quotations(args.debs / "usr/share/games/fortunes/de"), args.out / "german" / "quotations.txt")


if __name__ == "__main__":
    main()
