"""One small frozen class per loss."""

from __future__ import annotations
