"""The metrics of a training run, a JSON line for every step.

Each has the step's number, the rate, the time (Unix), and by plan the loss and the agreement of each draft position.
"""

from __future__ import annotations

import itertools
import json
import os
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
            raise self._refusal(error) from error

    def keep(self, steps: int) -> None:
        """Drop the lines of steps that will be taken again.

        Raises:
            SkipSpecError: they can't be written; all lines are there still.
        """
        if not self.file.is_file():
            return
        kept = self.file.with_name(f"{self.file.name}.new")
        try:
            with self.file.open(encoding="utf-8") as lines, kept.open("w", encoding="utf-8") as file:
                file.writelines(itertools.islice(lines, steps))
            os.replace(kept, self.file)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> SkipSpecError:
        return SkipSpecError(f"Writing {self.file} failed ({error.strerror}); make room and give the command again.")
