"""Patterns of the entries by which a GPU is named: `--gpus` and the configuration."""

from __future__ import annotations

INDEX = r"\d{1,4}"
UUID = r"(?:GPU|MIG|MIG-GPU)-[0-9a-fA-F][0-9a-fA-F/-]*"
"""A MIG instance has the prefix MIG, or MIG-GPU under drivers before 470."""
