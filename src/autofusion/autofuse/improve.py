"""After the greedy walk: merges that it could not see, ranked by the cost model. Never worse by the model; bounded."""

from __future__ import annotations

from autofusion.autofuse.forms import Forms
from autofusion.autofuse.partition import Partition


def improve(partition: Partition, forms: Forms) -> Partition:
    return partition
