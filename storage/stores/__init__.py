"""Stores: files under one contract, on a local disk, on S3 or Google Cloud Storage, or in memory.

`open_store` returns a `Store`, whose `put_if_absent` is the one primitive that commit logs, numbered folders
and leases rest on.  Nothing here knows what the files hold.
"""

from __future__ import annotations

from topline.storage.errors import LeaseHeldError
from topline.storage.stores.base import Store
from topline.storage.stores.commit_log import CommitLog
from topline.storage.stores.files import FileEntry, FileSet, check_files
from topline.storage.stores.lease import (
    DEFAULT_TERMS,
    Clock,
    Lease,
    LeaseLostError,
    LeaseTerms,
    Tenant,
    held_lease,
    holder,
    tenant,
    wait_for_lock,
)
from topline.storage.stores.objects import open_store, repeated_requests
from topline.storage.stores.urls import masked, parse_url, split_url
