"""Align the signs that were seen on a tablet with those that its text says are there.

Both are lines of signs in order. Within a line, a sign that is seen and one of the text are joined, or one of them is
left over: undetected, damaged beyond the text's ``#``, or a find on bare clay. Where the text has a lost stretch, any
number of finds may stand. Joining gains the log of how much likelier than chance the classifier thinks the text's sign
is, between bounds, so that a sign it mistakes is joined all the same if its neighbours hold it in place: those are the
signs that a classifier learns most from. Lines are joined in the same way, in order, by what their signs gain.

After Dencker, Klinkisch, Maul and Ommer 2020, who align detections with transliterations to train a detector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dubsar.datasets.sign_readings import TextSign

Floats = npt.NDArray[np.floating]
CHANCE, LEAST = 0.01, 0.002  # probability of a sign that is not there; added, so that the log has a floor
LOWEST, HIGHEST = -1.6, 4.5  # bounds of what joining two signs gains
UNKNOWN = -0.3  # gain of a sign that nothing is known of
UNSEEN, UNWRITTEN, IN_LOST = -1.2, -1.5, -0.3  # left over: of the text; of the finds; of these in a lost stretch
LEAST_UNWRITTEN, LEAST_UNSEEN = -3.0, -2.0  # of whole lines that are left over, at the worst
NEAR = 2  # signs of the text on either side that support one


@dataclass(frozen=True)
class Joined:
    """A find and a sign of the text that belong together.

    Attributes:
        seen: index of the find within its line.
        written: index of the sign within the line of the text.
        gain: natural log of likelihood over chance, bounded.
    """

    seen: int
    written: int
    gain: float


def align_line(seen_NC: Floats, text: Sequence[TextSign]) -> tuple[float, list[Joined]]:
    """Align one line of finds with one line of text.

    Args:
        seen_NC: probabilities of the classes, finds from left to right.
        text: the signs of the line.

    Returns:
        The score (0: nothing gained over leaving all out of account), and what is joined, from left to right.
    """
    gains = _gains(seen_NC, text)
    rows, columns = len(seen_NC), len(text)
    lost = [sign.lost for sign in text]
    near_lost = [any(lost[max(0, j - 1) : j + 1]) for j in range(columns + 1)]
    score = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    step = [[""] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows + 1):
        for j in range(columns + 1):
            ways = []
            if i and j and not lost[j - 1]:
                ways.append((score[i - 1][j - 1] + gains[i - 1][j - 1], "join"))
            if i:
                ways.append((score[i - 1][j] + (IN_LOST if near_lost[j] else UNWRITTEN), "seen"))
            if j:
                ways.append((score[i][j - 1] + (0.0 if lost[j - 1] else UNSEEN), "written"))
            if ways:
                score[i][j], step[i][j] = max(ways)
    joined: list[Joined] = []
    i, j = rows, columns
    while i or j:
        how = step[i][j]
        i, j = i - (how != "written"), j - (how != "seen")
        if how == "join":
            joined.append(Joined(i, j, gains[i][j]))
    return score[rows][columns], joined[::-1]


def _gains(seen_NC: Floats, text: Sequence[TextSign]) -> list[list[float]]:
    gains_NM = np.full((len(seen_NC), len(text)), UNKNOWN)
    for column, sign in enumerate(text):
        if sign.classes:
            likely_N = seen_NC[:, list(sign.classes)].max(axis=1)
            gains_NM[:, column] = np.log((likely_N + LEAST) / CHANCE).clip(LOWEST, HIGHEST)
    found: list[list[float]] = gains_NM.tolist()
    return found


def align_face(
    lines: Sequence[Floats], text: Sequence[Sequence[TextSign]]
) -> tuple[float, list[tuple[int, int, list[Joined]]]]:
    """Align the lines of a face with those of a text, in order; lines of either may be left over.

    Args:
        lines: of finds, their class probabilities (N, C).
        text: lines of signs.

    Returns:
        The score, and the pairs of lines (of finds, of the text) with what is joined in them.
    """
    pairs = {(i, j): align_line(seen, signs) for i, seen in enumerate(lines) for j, signs in enumerate(text)}
    left_seen = [max(-float(len(seen)), LEAST_UNWRITTEN) for seen in lines]
    left_text = [max(UNSEEN / 2 * sum(not s.lost for s in signs), LEAST_UNSEEN) for signs in text]
    score = np.zeros((len(lines) + 1, len(text) + 1))
    score[1:, 0], score[0, 1:] = np.cumsum(left_seen), np.cumsum(left_text)
    step = np.full(score.shape, "text", dtype=object)
    step[1:, 0] = "seen"
    for i in range(1, len(lines) + 1):
        for j in range(1, len(text) + 1):
            score[i, j], step[i, j] = max(
                (score[i - 1, j - 1] + pairs[i - 1, j - 1][0], "join"),
                (score[i - 1, j] + left_seen[i - 1], "seen"),
                (score[i, j - 1] + left_text[j - 1], "text"),
            )
    found = []
    i, j = len(lines), len(text)
    while i or j:
        how = step[i, j]
        i, j = i - (how != "text"), j - (how != "seen")
        if how == "join":
            found.append((i, j, pairs[i, j][1]))
    return float(score[-1, -1]), found[::-1]


def support(joined: Sequence[Joined], text: Sequence[TextSign]) -> list[float]:
    """Return for each joined sign how well its neighbours hold it in place: the mean gain of those within `NEAR`.

    A sign without a joined neighbour has `LOWEST`.
    """
    known = [j for j in joined if text[j.written].classes]
    found = []
    for one in joined:
        near = [k.gain for k in known if 0 < abs(k.written - one.written) <= NEAR]
        found.append(float(np.mean(near)) if near else LOWEST)
    return found
