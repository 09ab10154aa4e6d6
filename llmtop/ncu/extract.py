"""The program that reads an .ncu-rep with NVIDIA's ncu_report and prints it as JSON; llmtop.ncu.read starts it.

It is a process of its own because that library is native code over a foreign file: what it does to a damaged one
must not end a monitor, and a monitor need not hold its 50 MB. Imports nothing of llmtop.
"""

from __future__ import annotations

import sys

MOST_KERNELS = 200
"""A report of a whole run may hold thousands; what is looked at is one or a few."""
_LEFT_OUT = ("breakdown:", "group:", "pmsampling:")


def main(path: str) -> int:
    """Print every kernel of a report: names, where it ran, all numbers."""
    sys.path = [place for place in sys.path if place not in ("", sys.path[0])]  # this folder hides nothing
    import json

    import ncu_report  # type: ignore[import-untyped, import-not-found, unused-ignore]

    try:
        context = ncu_report.load_report(path)
    except Exception as error:  # noqa: BLE001 - the library's own, of no common kind
        print(json.dumps({"error": str(error)}))
        return 0
    kernels: list[dict[str, object]] = []
    left_out = 0
    for index in range(context.num_ranges()):
        profiled = context.range_by_idx(index)
        for place in range(profiled.num_actions()):
            if len(kernels) < MOST_KERNELS:
                kernels.append(_kernel(profiled.action_by_idx(place)))
            else:
                left_out += 1
    print(json.dumps({"kernels": kernels, "left_out": left_out}))
    return 0


def _kernel(action: object) -> dict[str, object]:
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}
    for name in action.metric_names():  # type: ignore[attr-defined]
        if name.startswith(_LEFT_OUT):
            continue
        value = action.metric_by_name(name).value()  # type: ignore[attr-defined]
        if isinstance(value, str):
            words[name] = value
        elif isinstance(value, int | float) and value - value == 0:  # neither NaN nor infinite
            numbers[name] = float(value)
    return {
        "name": action.name(action.NameBase_FUNCTION),  # type: ignore[attr-defined]
        "demangled": action.name(action.NameBase_DEMANGLED),  # type: ignore[attr-defined]
        "gpu": words.get("device__attribute_display_name", ""),
        "numbers": numbers,
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
