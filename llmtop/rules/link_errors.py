"""The rule for ports of InfiniBand and RoCE adapters whose errors rise."""

from __future__ import annotations

from typing import Final

from llmtop import format as fmt
from llmtop.model.links import LINK_DOWNED, MIN_ERRORS, MIN_LINK_DOWNED, WINDOW_SECONDS
from llmtop.rules.rule import AlertText, Rule, RuleText, complete_clauses
from llmtop.rules.state.link import LinkState


def _has_rising_errors(port: LinkState, is_raised: bool) -> bool:
    return bool(port.rising())


def _alert(port: LinkState) -> AlertText:
    rising = sorted(port.rising().items(), key=lambda item: (item[0] != LINK_DOWNED, -item[1]))
    name = f"{fmt.printable(port.link.device, 20)} port {port.link.port}"
    counts = [f"{error} +{rise}" for error, rise in rising]
    state = "" if port.link.state in (None, "ACTIVE") else f"; the port is {fmt.printable(port.link.state or '')}"
    return AlertText(
        severity="warning",
        summary=f"Network port {name} has new errors in the last {fmt.duration(WINDOW_SECONDS)}: "
        f"{', '.join(counts)}{state}.",
        evidence={
            "device": port.link.device,
            "port": port.link.port,
            "link_state": port.link.state,
            **{f"{error}_in_window": rise for error, rise in rising},
            "rx_bytes_per_s": port.link.rx_bytes_per_s,
            "tx_bytes_per_s": port.link.tx_bytes_per_s,
        },
        next="check the cable and the switch port; run: ibstat. NCCL waits while lost data is sent again",
        points=complete_clauses(*counts, f"on {name}", "NCCL waits while data is sent again"),
    )


LINK_ERRORS: Final = Rule[LinkState](
    id="link_errors",
    holds=_has_rising_errors,
    describe=_alert,
    text=RuleText(
        meaning="The adapter sends lost data again. Every rank of the job waits for the slowest link.",
        condition=f"within {fmt.duration(WINDOW_SECONDS)}, at least {MIN_ERRORS} new errors of one counter of the "
        f"port, or {LINK_DOWNED} rose by {MIN_LINK_DOWNED}",
        source="the threshold of 10 is that of the example of ibqueryerrors (infiniband-diags); the kernel "
        "describes the counters in sysfs-class-infiniband",
    ),
)

LINK_RULES: Final = (LINK_ERRORS,)
