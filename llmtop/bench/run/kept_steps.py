"""The steps of a program that runs in turns which no pause touched."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from llmtop.bench.run.turns import Turn


class KeptSteps:
    """Chooses the steps that lie wholly within a turn, without the first of each turn.

    The first whole step of a turn finds caches that the other program has filled. With a GPU also steps that begin
    within the first quarter of the turn are left out (`llmtop.bench.run.turns.settling_seconds`).
    """

    def __init__(self, settling: float) -> None:
        """Begin.

        Args:
            settling: seconds after the begin of a turn in which no step counts.
        """
        self._settling = settling
        self._turns: list[Turn] = []
        self._starts: list[float] = []
        self._judged = 0
        self._first_of: dict[int, float] = {}
        """Start of the first whole step, by round."""
        self._kept: list[tuple[int, int]] = []
        """Number and round of each kept step."""
        self.places: list[int] = []
        """Numbers of the kept steps of the rounds that count."""
        self.rounds: list[int] = []
        """Round of each of them."""
        self.interrupted: list[float] = []
        """Running time in seconds, pauses subtracted, of the steps that a pause interrupted."""
        self.while_paused = 0
        """Steps that began and ended within a pause: something was not stopped."""

    def add_turns(self, turns: Sequence[Turn]) -> None:
        """Take the turns that have ended since.

        Args:
            turns: all turns of this program so far, oldest first.
        """
        for turn in turns[len(self._turns) :]:
            self._turns.append(turn)
            self._starts.append(turn.began)

    def judge(self, starts: Sequence[float], seconds: Sequence[float], first: int) -> None:
        """Judge the steps that ended before the last turn did.

        Args:
            starts: start of each whole step, seconds of CLOCK_MONOTONIC.
            seconds: duration of each.
            first: number of the first step that may count: those before it are warm-up.
        """
        if not self._turns:
            return
        self._judged = max(self._judged, first)
        while self._judged < len(starts):
            place, start = self._judged, starts[self._judged]
            end = start + seconds[place]
            if end > self._turns[-1].ended:
                return
            self._judged += 1
            if end > self._starts[0]:
                self._judge_one(place, start, end)

    def _judge_one(self, place: int, start: float, end: float) -> None:
        at = bisect_right(self._starts, start) - 1
        if at >= 0 and end <= self._turns[at].ended:
            turn = self._turns[at]
            is_first = self._first_of.setdefault(turn.round, start) == start
            if not is_first and start >= turn.began + self._settling:
                self._kept.append((place, turn.round))
            return
        last = bisect_right(self._starts, end) - 1
        ran = sum(
            max(0.0, min(end, turn.ended) - max(start, turn.began))
            for turn in self._turns[max(at, 0) : max(last, 0) + 1]
        )
        if ran > 0.0:
            self.interrupted.append(ran)
        else:
            self.while_paused += 1

    @property
    def kept_rounds(self) -> set[int]:
        """Return the rounds with a kept step."""
        return {number for _, number in self._kept}

    def count_rounds(self, rounds: set[int]) -> None:
        """Count the steps of some rounds alone.

        Args:
            rounds: numbers of the rounds in which every program has a kept step.
        """
        counted = [one for one in self._kept if one[1] in rounds]
        self.places, self.rounds = [place for place, _ in counted], [number for _, number in counted]
