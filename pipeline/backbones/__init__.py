"""Backbones: images to feature vectors."""

from __future__ import annotations
