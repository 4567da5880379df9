"""T6: which levers of a failing bundle are at fault.

A lever may be harmless alone and fail with another (a compiled graph under a cast, say), so measuring each lever alone
is not enough. In order of cost:

1. T3 of each lever alone, where it can be had: a suspicion, which decides what is tried first.
2. The bundle again, and nothing at all: a failure that does not come back, or that is there with all levers off, is no
   lever's fault.
3. Leave-one-out: a lever is *needed* where the bundle passes without it.
4. Delta debugging (ddmin) for a minimal failing set: it fails, and does not without any one of its levers. That set is
   taken away and the rest looked at again, since two faults may hide behind one another.

No set is run twice, and no more runs are made than the budget allows; what is known by then is reported as such. A set
that fails inside of one that passes is reported too: some lever hides the fault, and leave-one-out misleads there.

Source: Zeller and Hildebrandt 2002, Simplifying and Isolating Failure-Inducing Input.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dubsar.pipelines.parity.result import Finding
from dubsar.pipelines.parity.statistics import Verdict

Fails = Callable[[Mapping[str, Any]], bool | None]  # None: could not be decided
BUDGET = 40


class _SpentError(Exception):
    """No run is left."""


@dataclass
class _Runs:
    """Asks whether a set of levers fails: each set once, and not more often than the budget allows."""

    levers: Mapping[str, Any]
    fails: Fails
    budget: int
    seen: dict[frozenset[str], bool | None] = field(default_factory=dict)

    def ask(self, names: Sequence[str]) -> bool | None:
        key = frozenset(names)
        if key not in self.seen:
            if len(self.seen) >= self.budget:
                raise _SpentError
            self.seen[key] = self.fails({n: v for n, v in self.levers.items() if n in key})
        return self.seen[key]

    def smallest_failing(self, among: Sequence[str]) -> list[str]:
        """Return the smallest set of these levers that was seen to fail; all of them where none was."""
        failing = [key for key, failed in self.seen.items() if failed and key <= set(among)]
        return _ordered(min(failing, key=len, default=frozenset(among)), self.levers)


def who(
    levers: Mapping[str, Any],
    fails: Fails,
    *,
    alone: Callable[[str, Any], Finding] | None = None,
    budget: int = BUDGET,
) -> list[Finding]:
    """Find the levers that make a bundle fail.

    Args:
        levers: the failing bundle, value by name.
        fails: runs the comparison with some of the levers on: True where it fails, None where it could not be decided
            (which counts as not failing, but clears nobody).
        alone: T3 of one lever, by name and value.
        budget: most calls of ``fails``.

    Returns:
        What was found, of tier T6; the findings of ``alone`` that did not pass come first, as they are.
    """
    suspicions = [f for f in (alone(n, v) for n, v in levers.items()) if not f.passed] if alone else []
    suspects = [f.lever for f in suspicions]
    names = sorted(levers, key=lambda n: n not in suspects)
    runs = _Runs(levers, fails, budget)
    findings = list(suspicions)
    rest = names
    try:
        cleared = _cleared(runs, names)
        if cleared is not None:
            return [*findings, cleared]
        findings += _leave_one_out(runs, names)
        while rest and runs.ask(rest):
            culprits = minimal_failing(rest, runs.ask)
            findings.append(_blame(culprits, runs))
            rest = [n for n in rest if n not in culprits]
    except _SpentError:
        findings.append(_spent(runs, rest))
    return findings + _hidden(runs)


def minimal_failing(names: Sequence[str], fails: Callable[[Sequence[str]], bool | None]) -> list[str]:
    """Return a failing part of a failing list that does not fail without any one of its elements (ddmin).

    Args:
        names: fails as a whole; the empty list does not.
        fails: asked of parts, in the same order.
    """
    kept, parts = list(names), 2
    while len(kept) > 1:
        pieces = [kept[len(kept) * k // parts : len(kept) * (k + 1) // parts] for k in range(parts)]
        others = [[n for n in kept if n not in piece] for piece in pieces] if parts > 2 else []
        found = next((part for part in pieces + others if fails(part)), None)
        if found is not None:
            # a piece starts from halves again, a complement keeps its pieces
            parts = 2 if found in pieces else parts - 1
            kept = found
        elif parts < len(kept):
            parts = min(2 * parts, len(kept))
        else:
            break
    return kept


def _cleared(runs: _Runs, names: Sequence[str]) -> Finding | None:
    """Return why no lever can be blamed, or None where the failure is the bundle's and comes back."""
    again = runs.ask(names)
    if not again:
        what = "passed" if again is False else "could not be decided"
        return _finding(
            "bundle", Verdict.INCONCLUSIVE, f"run again, the bundle {what}: chance or the machine, no lever to blame"
        )
    if runs.ask([]):
        return _finding("bundle", Verdict.ENV_NONDETERMINISTIC, "fails with all levers off as well: not the levers")
    return None


def _leave_one_out(runs: _Runs, names: Sequence[str]) -> list[Finding]:
    """Return the levers without which the bundle passes, and those without which it could not be decided."""
    findings = []
    for name in names if len(names) > 1 else ():
        match runs.ask([n for n in names if n != name]):
            case False:
                what = f"the bundle fails with {name} and passes without it"
                findings.append(_finding(name, Verdict.INFERIOR, what, name))
            case None:
                what = f"the bundle without {name} could not be decided"
                findings.append(_finding(name, Verdict.INCONCLUSIVE, what))
    return findings


def _blame(culprits: Sequence[str], runs: _Runs) -> Finding:
    """Return a minimal failing set; it says where a smaller one could not be decided."""
    together = " + ".join(culprits)
    what = (
        f"{together} fails on its own" if len(culprits) == 1 else f"{together} fail together, not without any of them"
    )
    if any(runs.seen.get(frozenset(culprits) - {n}, False) is None for n in culprits):
        what = f"{together} fails; some smaller set could not be decided"
    return _finding("bundle", Verdict.INFERIOR, what, together, len(runs.seen))


def _spent(runs: _Runs, rest: Sequence[str]) -> Finding:
    smallest = " + ".join(runs.smallest_failing(rest))
    what = f"the budget of {runs.budget} runs is spent; the smallest set that may hold a culprit is {smallest}"
    return _finding("bundle", Verdict.INCONCLUSIVE, what, smallest, len(runs.seen))


def _hidden(runs: _Runs) -> list[Finding]:
    """Return one finding where a failing set lies inside of a passing one: what hides the fault."""
    failing, passing = ([k for k, failed in runs.seen.items() if failed is wanted] for wanted in (True, False))
    pairs = [(small, large) for small in failing for large in passing if small < large]
    if not pairs:
        return []
    small, large = min(pairs, key=lambda pair: len(pair[1] - pair[0]))
    more = _ordered(large - small, runs.levers)
    with suppress(_SpentError):
        more = minimal_failing(more, lambda part: runs.ask([*small, *part]) is False)
    inner, hiding = " + ".join(_ordered(small, runs.levers)), " + ".join(more)
    what = f"not monotone: {inner} fails, but passes with {hiding}, which hides it; read leave-one-out with care"
    return [_finding("bundle", Verdict.INCONCLUSIVE, what, hiding)]


def _ordered(names: frozenset[str], levers: Mapping[str, Any]) -> list[str]:
    return [n for n in levers if n in names]


def _finding(lever: str, verdict: Verdict, what: str, culprit: str = "", runs: int | None = None) -> Finding:
    return Finding("T6", lever, verdict, what, culprit, {} if runs is None else {"runs": float(runs)})
