"""Become a command after preparing it for Kineto captures, as `llmtop run` does: argv is the command."""

from __future__ import annotations

import os
import sys

from llmtop.capture.kineto.spawn import start_host

if __name__ == "__main__":
    environment = dict(os.environ)
    assert start_host(environment, os.getpid())
    os.execvpe(sys.argv[1], sys.argv[1:], environment)
