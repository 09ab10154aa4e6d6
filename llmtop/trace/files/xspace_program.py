"""Program, run in its own process, that prints an .xplane.pb as a Chrome trace with xprof. Usage: FILE

Native code over a foreign file: what becomes of it shall be this process's affair alone.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Print the trace."""
    from xprof.convert import raw_to_tool_data

    data, _ = raw_to_tool_data.xspace_to_tool_data([sys.argv[1]], "trace_viewer", {})
    text = data if isinstance(data, bytes) else str(data).encode()
    sys.stdout.buffer.write(text)


if __name__ == "__main__":
    main()
