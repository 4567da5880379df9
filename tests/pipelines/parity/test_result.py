"""The record of a parity run: its keys are pinned, it survives JSON, and its verdict decides the exit status."""

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest

from dubsar.pipelines.parity.result import (
    SCHEMA_VERSION,
    Curve,
    Finding,
    Outcome,
    ParityResult,
    Ratio,
    Stratum,
    exit_status,
    verdict_of,
)
from dubsar.pipelines.parity.statistics import Verdict

KEYS = {
    1: {
        ParityResult: "stage levers preset commit hardware versions configs margins findings curves band outcomes "
        "strata throughput hours notes verdict files",
        Finding: "tier lever verdict what culprit numbers",
        Curve: "arm seed steps losses steps_per_second scores commit hardware",
        Outcome: "metric higher_is_better margin gain low high se_seeds se_tablets correlation paired p "
        "margin_supported seeds_needed verdict power",
        Stratum: "metric name items reference candidate gain low high",
        Ratio: "value low high",
    }
}


def full() -> ParityResult:
    return ParityResult(
        "transliterate",
        {"precision": "bf16", "ema": {"decay": 0.999}},
        "full",
        "abc1234",
        "a CPU",
        {"torch": "2.14"},
        {"reference": "11", "candidate": "22"},
        {"cer": 0.2},
        [
            Finding("T0", "precision", None, "bfloat16 seen", numbers={"share": 1.0}),
            Finding("T3", "precision", Verdict.INFERIOR, "too far", "anchors", {"ratio": math.inf}),
        ],
        [Curve("reference", 0, [1, 2], [3.5, math.nan], 1.5, {"cer": 12.0}, "abc1234", "a CPU")],
        {"steps": [1.0], "low": [-math.inf], "high": [4.0]},
        [
            Outcome(
                "cer", False, 0.2, 0.1, -0.1, 0.3, 0.05, 0.02, 0.5, True, 0.01, 0.15, None, Verdict.NON_INFERIOR, 0.9
            )
        ],
        [Stratum("cer", "long", 10.0, 12.0, 11.0, 1.0, -math.inf, math.inf)],
        Ratio(1.4, 0.0, math.inf),
        {"reference": {"hours": 2.0, "provenance": "measured here"}},
        ["a note"],
        Verdict.INFERIOR,
    )


def test_a_change_of_the_schema_is_never_an_accident() -> None:
    """A new field is added here; a dropped, renamed or redefined one raises `SCHEMA_VERSION`."""
    assert {kind: {f.name for f in fields(kind)} for kind in KEYS[1]} == {
        kind: set(names.split()) for kind, names in KEYS[SCHEMA_VERSION].items()
    }
    written = full().to_dict()
    assert set(written) == {"schema_version", *KEYS[SCHEMA_VERSION][ParityResult].split()}
    for part, kind in (("findings", Finding), ("curves", Curve), ("outcomes", Outcome), ("strata", Stratum)):
        assert set(written[part][0]) == set(KEYS[SCHEMA_VERSION][kind].split())


def test_it_survives_strict_json() -> None:
    text = json.dumps(full().to_dict(), allow_nan=False)
    again = ParityResult.from_dict(json.loads(text))
    assert math.isnan(again.curves[0].losses[1])
    mended = replace(again, curves=[replace(again.curves[0], losses=[3.5, 0.0])])
    assert mended == replace(full(), curves=[replace(full().curves[0], losses=[3.5, 0.0])])
    assert isinstance(again.verdict, Verdict)
    assert again.findings[0].verdict is None
    assert again.outcomes[0].verdict is Verdict.NON_INFERIOR


def test_a_file_without_the_later_tiers_is_read() -> None:
    short = ParityResult("detect", {}, "full", "", "", {}, {}, {}, [])
    assert ParityResult.from_dict(json.loads(json.dumps(short.to_dict()))) == short
    older = {key: value for key, value in short.to_dict().items() if key != "files"}
    assert ParityResult.from_dict(older) == short


@pytest.mark.parametrize("version", [None, 0, SCHEMA_VERSION + 1, str(SCHEMA_VERSION)])
def test_another_schema_is_refused(version: Any) -> None:
    with pytest.raises(ValueError, match="has schema version"):
        ParityResult.from_dict({**full().to_dict(), "schema_version": version})


def test_only_what_is_proved_ends_with_0() -> None:
    assert {v for v in Verdict if exit_status(v) == 0} == {v for v in Verdict if v.proves_parity}
    others = [exit_status(v) for v in Verdict if not v.proves_parity]
    assert others == [10, 11, 12, 13]
    assert set(others).isdisjoint(range(6)), "the command's other faults end with 1 to 5"


def test_a_tier_without_a_verdict_lets_the_next_follow_but_proves_nothing() -> None:
    nothing = Finding("T3", "precision", None, "ratio 1.1")
    assert nothing.passed
    assert verdict_of([nothing]) is Verdict.INCONCLUSIVE
    assert verdict_of([nothing, Finding("T1", "checkpointing", Verdict.EXACT, "equal")]) is Verdict.EXACT
    assert not Finding("T0", "liger", Verdict.NOT_ENGAGED, "nothing").passed


def test_a_refused_lever_says_so() -> None:
    assert Finding("T0", "cuda_graphs", None, "refused: needs CUDA").refused
    assert not Finding("T0", "cuda_graphs", None, "12 replays seen").refused
