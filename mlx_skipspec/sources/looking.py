"""A drafter that says how sure it is of every token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from mlx_skipspec.acceptance import KEEP, Acceptance, Kind
from mlx_skipspec.drafters import NOTHING, LayerSkip
from mlx_skipspec.prospect import Prospect
from mlx_skipspec.sources.computing import Computing
from mlx_skipspec.sources.protocol import DEEP, Guess, Source

BUCKETS = 8  # of probability, equally wide


@dataclass(frozen=True)
class Drafted:
    """A token, how likely it seems to be right, and if the host looked at it, its bucket and id."""

    token: mx.array  # (1,)
    right: float
    bucket: int | None = None
    id: int | None = None


@dataclass(frozen=True)
class Dropped:
    """A token that was drafted and not verified: the text will tell whether it was right."""

    place: int
    id: int
    kind: Kind
    bucket: Kind


class Looking(Computing):
    """The model's own layers: after every token they are stopped if going on does not pay, and what looks wrong is not
    verified.

    How often a token of such a probability is right is learned, and so is how often such a token comes. On SmolLM2 with
    a (2,2) bridge, 595 drafts, the first token was right in 7, 18, 28, 40, 66, 38, 81, 86 of 100 by eighths of its
    probability. The host waits for a probability only where the verdict depends on it. What is dropped costs draft
    steps, but no rows of a pass.
    """

    def __init__(self, drafter: LayerSkip) -> None:
        self.layers = drafter
        self.by_probability = Acceptance({b: (b + 0.5) / BUCKETS for b in range(BUCKETS)})
        self._came = {last: [1.0] * BUCKETS for last in ("unknown", "right", "wrong")}
        super().__init__(drafter)

    def follow(self, earlier: Source) -> None:
        super().follow(earlier)
        if isinstance(earlier, Looking):
            self.by_probability, self._came = earlier.by_probability, earlier._came

    def begin(self) -> None:
        super().begin()
        self._drafted: list[Drafted] = []  # for the last guess, the first `_verified` of them in it
        self._verified = 0
        self._dropped: Dropped | None = None

    def offer(self, context: Sequence[int], k: int) -> list[Kind]:
        if self._dropped is not None and self._dropped.place < len(context):
            right = context[self._dropped.place] == self._dropped.id
            self.acceptance.learn(self._dropped.kind, right)
            self.by_probability.learn(self._dropped.bucket, right)
            if not self._verified:
                self._last = "right" if right else "wrong"
        self._dropped = None
        return super().offer(context, k)

    def promise(self, prospect: Prospect) -> tuple[float, int]:
        came = self._came[self._last]
        total = sum(came)
        sure = [(often / total, self._right(b, 0)) for b, often in enumerate(came)]
        return max(prospect.best(), (prospect.looking(sure), 1))

    def guesses(self, context: Sequence[int], prospect: Prospect, k: int) -> Iterator[Guess]:
        drafted: list[Drafted] = []
        verdict = None
        for token, probability in self.layers.tokens(context, len(prospect.shares)):
            mx.async_eval(token, probability)
            so_far = [*(one.token for one in drafted), token]
            yield Guess(mx.concatenate(so_far), len(so_far))  # while the device is at it
            one, verdict = self._look(token, probability, drafted, prospect)
            drafted.append(one)
            if verdict is not None:
                break
        assert verdict is not None, "behind the last token there is no going on"
        self._drafted, self._verified = drafted, verdict
        if drafted[0].bucket is not None:
            came = self._came[self._last]
            came[:] = (KEEP * often + (b == drafted[0].bucket) for b, often in enumerate(came))
        if verdict == len(drafted):
            return
        if (first := drafted[verdict]).id is not None and first.bucket is not None:
            place = len(context) + verdict
            self._dropped = Dropped(place, first.id, self._kind(verdict), _bucket(first.bucket, verdict))
        yield Guess(mx.concatenate(so_far[:verdict]) if verdict else NOTHING, len(drafted))

    def hear(self, drafted: int, accepted: int) -> None:
        for i, one in enumerate(self._drafted[: min(drafted, accepted + 1)]):
            if one.bucket is not None:
                self.by_probability.learn(_bucket(one.bucket, i), i < accepted)
        if accepted < drafted:
            self._dropped = None  # the text went another way before
        super().hear(drafted, accepted)

    def _look(
        self, token: mx.array, probability: mx.array, before: Sequence[Drafted], prospect: Prospect
    ) -> tuple[Drafted, int | None]:
        """The token, looked at if need be, and the verdict behind it."""
        sure = [one.right for one in before]
        right = [self._right(b, len(sure)) for b in range(BUCKETS)]
        verdicts = [prospect.verdict([*sure, share]) for share in right]
        if len(set(verdicts)) == 1:
            return Drafted(token, prospect.shares[len(sure)]), verdicts[0]
        packed = mx.concatenate([token.astype(mx.float32), probability.astype(mx.float32)])  # one read for both
        number, share = cast("list[float]", packed.tolist())
        bucket = min(int(share * BUCKETS), BUCKETS - 1) if share > 0 else 0  # NaN is not
        return Drafted(token, right[bucket], bucket, int(number)), verdicts[bucket]

    def _right(self, bucket: int, i: int) -> float:
        return self.by_probability.of(_bucket(bucket, i))


def _bucket(bucket: int, i: int) -> Kind:
    return bucket, min(i, DEEP)
