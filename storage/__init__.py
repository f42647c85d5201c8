"""Storage of datasets, models, runs and cached results; storage/README.md specifies the format.

`stores` and `arrays` handle files and Zarr shards; `datasets`, `models`, `runs` and `cache` what they
contain.  Visible files never change, half-written ones are never visible, nothing is pickled, and storage
knows no losses.
"""

from __future__ import annotations
