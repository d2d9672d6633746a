"""What loading an artifact's lanes took, for logs, metrics and the bench."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

from engine.runtime.sharing import SharedCost


@dataclass(frozen=True)
class LoadReport:
    """Seconds, graphs of all lanes, and bytes by what they hold: on the device where there is one, weights
    once for all lanes. shared_tokens: token sizes that have half-chip graphs, chosen from what `sharing`
    measured."""

    seconds: float
    graphs: int
    weights_bytes: int
    lane_bytes: tuple[int, ...]  # pools, buffers and graphs, lane by lane; none for lanes without graphs
    shared_tokens: tuple[int, ...] = ()
    sharing: tuple[SharedCost, ...] = ()

    def joined(self, searches: LoadReport) -> LoadReport:
        """With what searches on the same lanes took beside."""
        both = zip_longest(self.lane_bytes, searches.lane_bytes, fillvalue=0)
        return replace(
            self,
            seconds=self.seconds + searches.seconds,
            graphs=self.graphs + searches.graphs,
            lane_bytes=tuple(map(sum, both)),
        )
