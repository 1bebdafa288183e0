"""The processes of one training run, started by torchrun, or just this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm


@dataclass(frozen=True)
class World:
    """Which process this is, of how many, and on which device it works."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def join(cls) -> World:
        """Meet the other processes torchrun has started."""
        size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
        cuda = torch.cuda.is_available()
        device = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(device)
        if size > 1:
            # long enough to wait for a process whose prompts have longer answers
            dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(hours=6))
        return cls(int(os.environ.get("RANK", "0")), size, device)

    @property
    def first(self) -> bool:
        """Whether this is the process that talks and writes."""
        return self.rank == 0

    def note(self, line: str) -> None:
        """One line to the person, from the first process only, beside a progress bar."""
        if self.first:
            tqdm.write(line, file=sys.stderr)

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add each tensor up over all processes, in place, in one message."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        votes = torch.tensor([float(flag)], device=self.device)
        self.sum([votes])
        return bool(votes.item())

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def bar(self, total: int, name: str, initial: int = 0) -> Any:
        """Progress in tokens, on a terminal, of the process that talks."""
        disable = None if self.first else True
        return tqdm(total=total, initial=initial, desc=name, unit="tok", unit_scale=True, disable=disable)

    def leave(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()
