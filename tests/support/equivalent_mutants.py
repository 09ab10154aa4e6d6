"""Mutants that no test can notice, each with the proof; `make mutants` passes over them."""

from __future__ import annotations

from typing import Final

OVERLAPPING: Final = "llmtop/instrument/record/overlapping.py"
HUB: Final = "collectors/hub.py"
WORDS: Final = "llmtop/redaction/random_words.py"
EQUIVALENT: Final[dict[str, str]] = {
    f"{OVERLAPPING}: interval = track.begun - previous if 0 <= previous <= track.begun else -1 [0 -> 1]": (
        "previous is -1 or an instant of perf_counter_ns, which is not 0 in any process"
    ),
    f"{HUB}: while not self._closed and self._interval > 1.0 and time.monotonic() < tick + PATIENCE_SECONDS: "
    "[< -> <=]": "a reading of the clock that is equal to the limit costs one more pause of 20 ms",
    f"{HUB}: if now >= following: [>= -> >]": "a reading of the clock that is equal costs a pause of 0 s",
    "llmtop/protocol/tcp_store.py: return 0 [return 0 -> return None]": "data[None:] is data[0:]",
    "llmtop/bench/statistics/blocks.py: return total / sum(len(run) for run in runs) [/ -> *]": (
        "only ratios of the sums to one another, and their sign, are used"
    ),
    f"{WORDS}: kinds = [0 if character.isdigit() else 1 if character.islower() else 2 for character in text] "
    "[2 -> 3]": "kinds are compared with one another only, and 3 is none of the others either",
    f"{WORDS}: kinds = [0 if character.isdigit() else 1 if character.islower() else 2 for character in text] "
    "[character.islower() -> (not (character.islower()))]": "1 and 2 change places, and are only compared",
    "llmtop/rules/slower.py: _CAUSE_FIRST.get(_role(one[1]), 0) if one[1].part else 4, [4 -> 5]": (
        "a place in an order whose other values are 0 to 3"
    ),
    "llmtop/trace/files/merge.py: if rows > _MANY_ROWS: [> -> >=]": (
        "it only decides whether free memory is given back to the system, of which no result depends"
    ),
}
"""By `Mutant.key`: why the changed line does the same."""
