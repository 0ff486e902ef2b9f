"""What the head hears of a training's samples, for its accounts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from troupe.torch import _context
from troupe.torch.elastic.sampler import ElasticSampler

_EVERY_S = 1.0


class Progress:
    """Tells it now and then, and at the end: rank 0 does, whose figures are those of all.

    Each note has whole figures, so that one that is lost changes nothing.
    """

    def __init__(self) -> None:
        self._next = 0.0

    def committed(self, context: _context.Context, samplers: Sequence[ElasticSampler]) -> None:
        """After each commit."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            self.tell(context, samplers)

    def tell(self, context: _context.Context, samplers: Sequence[ElasticSampler]) -> None:
        """At once."""
        if context.rank == 0 and samplers:
            context.runtime.worker.tell("progress", json.dumps({
                "samples": sum(sampler.trained_num for sampler in samplers),
                "samples_per_epoch": sum(len(sampler.dataset) for sampler in samplers)}))
