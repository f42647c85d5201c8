"""Arrays of rows as sharded Zarr 3 arrays: cut by a `ChunkPlan`, written a shard at a time, read by rows.

Every read is checked: a missing file or a flipped bit is an `IntegrityError`, never a fill value.  Dual
variables have their own format, in parts that many processes write concurrently.
"""

from __future__ import annotations

from topline.storage.arrays.duals import DualSource, DualWriter, RowBlocks, StoredDuals, from_rows
from topline.storage.arrays.groups import ArrayReader
from topline.storage.arrays.shards import ChunkPlan, Span
