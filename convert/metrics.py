"""The metrics of a training run, a JSON line for every step.

Each has the step's number, the rate, the time (Unix), and by plan the loss and the agreement of each draft position.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from mlx_skipspec.errors import SkipSpecError


class Metrics:
    """A file of lines, the first of step 0, no step twice."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def add(self, line: dict[str, Any]) -> None:
        """Append a step's.

        Raises:
            SkipSpecError: it can't be written.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise SkipSpecError(
                f"Writing {self.file} failed ({error.strerror}); make room and give the command again."
            ) from error

    def keep(self, steps: int) -> None:
        """Drop the lines of steps that will be taken again."""
        lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True) if self.file.is_file() else []
        self.file.write_text("".join(itertools.islice(lines, steps)), encoding="utf-8")
