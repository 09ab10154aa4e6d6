"""Names of files and folders that llmtop writes in one place and reads in others."""

from __future__ import annotations

CAPTURES = "llmtop-captures"
"""The folder of captures, where no other is named."""
CAPTURE_INFO = "capture.json"
REPORT = "report.json"
REPORT_TEXT = "report.md"
ENVIRONMENT = "environment.json"

PARTIAL = ".part"
"""Ending of a file that is not complete."""
FOLDED_STACKS = ".folded"
SPEEDSCOPE = ".speedscope.json"
CHROME_TRACE_OF_XLA = ".trace.json.gz"
XSPACE = ".xplane.pb"

PROMETHEUS_RULES = "prometheus-rules.yml"
PROMETHEUS_RULES_TEMPLATE = "prometheus-rules.template.yml"
"""File in llmtop/data: the recording and alerting rules that ship."""

NCU_REPORT = ".ncu-rep"
