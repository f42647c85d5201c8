"""What is on disk and how it is found again.

A store holds datasets, models, runs and cached results; storage/README.md specifies its format.  `stores` and
`arrays` know files and Zarr shards; `datasets`, `models`, `runs` and `cache` know what is stored.  Nothing
visible is ever changed, nothing half-written is ever visible, nothing is pickled, and no loss is known here.
"""

from __future__ import annotations
