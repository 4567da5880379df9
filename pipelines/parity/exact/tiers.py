"""The cheap tiers of parity: was a lever on, and does it compute the same, on miniatures and in seconds.

Which tiers a lever has to pass follows from its exactness class:

    T0  all       the lever was seen to act while a miniature trained
    T1  B         losses, gradients and weights of 20 steps are equal to the bit
    T2  A         in float64, through the real collator: outputs by example, loss and gradients within 1e-10
    T3  A, P      the rounding error is no larger than that of an honest computation of the same precision

A lever of class B is `EXACT` behind T1, and one of class A without a random draw `EQUIVALENT` behind T3. The others
(P, S, M) have passed what can be said without training; T4 and T5 decide.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from dubsar.configs.blocks import Efficiency
from dubsar.pipelines.levers.observe import Observer
from dubsar.pipelines.levers.table import LEVERS, Lever
from dubsar.pipelines.parity.exact.miniature import Change, build, fit, in_float64
from dubsar.pipelines.parity.exact.record import Record, Recorder
from dubsar.pipelines.parity.exact.rounding import Rounded
from dubsar.pipelines.parity.result import REFUSED, Finding
from dubsar.pipelines.parity.statistics import Verdict

OBSERVED_STEPS = 8
BITWISE_STEPS = 20
FUNCTION_STEPS = 3
SAME_FUNCTION = 1e-10  # largest relative difference in float64
NOISE = 1e-5  # of the largest gradient: one below it is rounding alone, such as of a bias in front of a batch norm
# in float32 a kernel that adds up in another order is up to four times as far off as the reference (channels-last
# convolutions on a CPU); what leaks from 16 bits is thousands of times off
ERROR_RATIO = {"fp32": 6.0, "bf16": 3.0, "fp16": 3.0}
LEAST_COSINE = {"fp32": 0.9999, "bf16": 0.9, "fp16": 0.9}  # between the whole gradient and that in float64
SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROWS: dict[str, Lever] = {lever.name: lever for lever in LEVERS}


def run_cheap_tiers(stage: str, levers: Mapping[str, Any], *, change: Change | None = None) -> list[Finding]:
    """Judge levers by the tiers that cost seconds, cheaper tiers first; a lever that fails one is left out of the next.

    All levers are seen to act together (T0); then each is compared alone with the reference, all levers off, and where
    several act, all those together that leave model and random draws as they are (``bundle``).

    Args:
        stage: stage name.
        levers: what is asked of each lever, by name.
        change: what a negative control breaks in the arm of the levers.

    Returns:
        What was found. A lever that cannot act here is `NOT_ENGAGED` with the reason (`Finding.refused`).
    """
    findings = watch(stage, levers, change)
    alive = {f.lever for f in findings if f.passed}
    arms = {name: _alone(levers, name) for name in levers if name in alive}
    together = {name: value for name, value in levers.items() if name in alive and not set("SM") & _class(name)}
    if len(together) > 1 and together not in arms.values():
        arms["bundle"] = together
    for exactness, tier in (("B", bitwise), ("A", same_function), ("AP", error_ratio)):
        for name, asked in list(arms.items()):
            classes = _class(name) if name != "bundle" else set().union(*map(_class, asked))
            if name == "bundle" and tier is not error_ratio:
                continue
            if set(exactness) & classes:
                findings.append(tier(stage, name, asked, change))
                if not findings[-1].passed:
                    del arms[name]
    return findings


def _class(lever: str) -> set[str]:
    return set(ROWS[lever].exactness)


def _alone(levers: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one lever with those that it cannot do without."""
    needed = set(ROWS[name].requires)
    return {n: value for n, value in levers.items() if n == name or n in needed}


def _efficiency(levers: Mapping[str, Any]) -> Efficiency:
    return Efficiency.model_validate(dict(levers), strict=False)


# --- T0


def watch(stage: str, levers: Mapping[str, Any], change: Change | None = None) -> list[Finding]:
    """T0: train a miniature with all levers for a few steps, and say of each whether it was seen to act."""
    try:
        miniature = build(stage, _efficiency(levers), steps=OBSERVED_STEPS, change=change)
    except ValueError as error:
        why = "; ".join(e["msg"] for e in error.errors()) if isinstance(error, ValidationError) else error
        return [Finding("T0", name, Verdict.NOT_ENGAGED, f"{REFUSED}: {why}", name) for name in levers]
    rows = {row.lever: row for row in miniature.levers.rows}
    observer = Observer(miniature.levers)
    if observer.on:
        torch._dynamo.reset()  # type: ignore[no-untyped-call]
        fit(miniature, [observer])
    findings = []
    for name in levers:
        seen = observer.observations.get(name)
        if rows[name].why:
            what = f"{REFUSED}: {rows[name].why}"
            findings.append(Finding("T0", name, Verdict.NOT_ENGAGED, what, name))
        elif seen is None:
            findings.append(Finding("T0", name, Verdict.NOT_ENGAGED, "off, or nothing was seen of it", name))
        else:
            verdict = None if seen.engaged else Verdict.NOT_ENGAGED
            findings.append(Finding("T0", name, verdict, seen.what, "" if seen.engaged else name))
    return findings


# --- T1


def bitwise(stage: str, lever: str, levers: Mapping[str, Any], change: Change | None = None) -> Finding:
    """T1: 20 deterministic steps give the same bits; the reference must give its own bits again first."""
    reference, again = _hashed(stage)
    if difference := _first_unequal(again, reference):
        what = f"the reference does not repeat itself: {difference}"
        return Finding("T1", lever, Verdict.ENV_NONDETERMINISTIC, what, difference)
    candidate = _record(stage, levers, hashed=True, change=change)
    if difference := _first_unequal(candidate, reference):
        return Finding("T1", lever, Verdict.INFERIOR, f"not equal to the bit: {difference}", difference)
    what = f"losses, gradients and weights of {BITWISE_STEPS} steps are equal to the bit"
    return Finding("T1", lever, Verdict.EXACT, what, numbers={"steps": BITWISE_STEPS})


def _first_unequal(candidate: Record, reference: Record) -> str:
    """Name what differs first; weights of a step come behind the gradients that changed them."""
    for step, (found, wanted) in enumerate(zip(candidate.hashes, reference.hashes, strict=True), start=1):
        for name in wanted:
            if found.get(name) != wanted[name]:
                return f"{name} in step {step}"
    return ""


@lru_cache
def _hashed(stage: str) -> tuple[Record, Record]:
    return _record(stage, {}, hashed=True), _record(stage, {}, hashed=True)


# --- T2


def same_function(stage: str, lever: str, levers: Mapping[str, Any], change: Change | None = None) -> Finding:
    """T2: in float64 the outputs for each example, the loss and every gradient agree within 1e-10.

    Differences are relative to the largest element; that of a gradient counts as at least 1e-5 of the largest of all
    gradients. The weights after three steps are compared where the first gradients are equal to the bit, that is for
    levers on the optimizer: AdamW divides by the gradient's size, so that elsewhere rounding noise in a gradient of
    nearly nought would become a whole step.
    """
    reference = _in_float64(stage)
    candidate = _record(stage, levers, double=True, steps=FUNCTION_STEPS, choices=reference.choices, change=change)
    largest, worst = 0.0, ""
    for name, found, wanted, scale in _pairs(candidate, reference):
        if found is None or found.shape != wanted.shape:
            what = f"{name} " + ("is absent" if found is None else f"has shape {tuple(found.shape)}")
            return Finding("T2", lever, Verdict.INFERIOR, what, name)
        difference = float((found - wanted).abs().max()) / scale if scale else 0.0
        if not difference <= SAME_FUNCTION:
            what = f"{name} is {difference:.1e} off in float64 (at most {SAME_FUNCTION:g})"
            return Finding("T2", lever, Verdict.INFERIOR, what, name, {"relative difference": difference})
        if difference >= largest:
            largest, worst = difference, name
    what = f"the same function in float64: largest difference {largest:.1e}, {worst}"
    return Finding("T2", lever, None, what, numbers={"relative difference": largest})


def _pairs(candidate: Record, reference: Record) -> Iterator[tuple[str, Tensor | None, Tensor, float]]:
    """Yield name, both tensors, and the size that differences are relative to, in the order of execution."""
    for name, wanted in reference.examples.items():
        yield name, candidate.examples.get(name), wanted, float(wanted.abs().max())
    yield "loss", candidate.losses[0], reference.losses[0], float(reference.losses[0].abs())
    largest = max(float(g.abs().max()) for g in reference.gradients.values())
    for name, wanted in reversed(reference.gradients.items()):  # backward begins at the output
        scale = max(float(wanted.abs().max()), NOISE * largest)
        yield f"gradient of {name}", candidate.gradients.get(name), wanted, scale
    if _same_gradients(candidate, reference):
        for name, wanted in reference.weights.items():
            yield f"weight {name}", candidate.weights.get(name), wanted, float(wanted.abs().max())


def _same_gradients(candidate: Record, reference: Record) -> bool:
    return all(torch.equal(candidate.gradients[n], g) for n, g in reference.gradients.items())


@lru_cache
def _in_float64(stage: str) -> Record:
    return _record(stage, {}, double=True, steps=FUNCTION_STEPS)


# --- T3


def error_ratio(stage: str, lever: str, levers: Mapping[str, Any], change: Change | None = None) -> Finding:
    """T3: the error against float64 is at most 6 (float32) or 3 (16 bits) times that of an honest reference.

    Everything is compared that one step computes: each module's output, named parts of the loss (detect's anchor
    points, decoded boxes, box, class and distribution loss), the loss and each gradient. The ratio of a tensor is

        RMSE(lever, float64) / (RMSE(reference, float64) + t * RMS(float64) / sqrt(n))

    with n its elements and t the median relative error of the reference: the error of a tensor of few elements is known
    roughly only, and that of a single number may be nought by luck. In float32 the denominator is at least t *
    RMS(float64): a kernel that adds up in another order may be seven times off in a first layer, where the reference
    happens to be nearly exact (channels-last convolutions on a CPU), and still below what is typical of the network.

    The honest reference of float32 is the network with all levers off. That of 16 bits is computed in float64, where
    operands and results of convolutions and products are rounded to 16 bits, forward and backward, under autocast
    (`Rounded`): less cannot be had. What it leaves exact (the float32 islands: anchors, boxes, losses) must be nearly
    exact with the lever too, which a ratio to another 16-bit run would not show.

    What detect's loss chooses (which anchors are to find a sign) is copied from the float64 run, since a choice that
    turns over is no measure of rounding. The cosine between the whole gradients must be 0.9999, or 0.9 in 16 bits.
    """
    precision = levers.get("precision", "fp32")
    large = precision != "fp32"  # float32 has bits enough for anchors of any size
    exact, reference = _exact(stage, large), _honest(stage, precision)
    candidate = _record(stage, levers, large=large, choices=exact.choices, change=change)
    worst = ("", 0.0)
    ratios = _ratios(candidate, reference, exact, same_layout="S" not in _exactness(levers), islands=large)
    for name, ratio in ratios:
        if not ratio <= ERROR_RATIO[precision]:
            honest = f"that of an honest {precision} computation (at most {ERROR_RATIO[precision]:g})"
            what = f"{name}: its error is {ratio:.3g} times {honest}"
            return Finding("T3", lever, Verdict.INFERIOR, what, name, {"error ratio": ratio})
        worst = max(worst, (name, ratio), key=lambda found: found[1])
    cosine = _cosine(candidate.gradients, exact.gradients)
    numbers = {"error ratio": worst[1], "cosine": cosine}
    if not cosine >= LEAST_COSINE[precision]:
        what = f"the gradient has a cosine of {cosine:.4f} to that in float64 (at least {LEAST_COSINE[precision]:g})"
        return Finding("T3", lever, Verdict.INFERIOR, what, "the whole gradient", numbers)
    what = f"error at most {worst[1]:.2f} times that of an honest {precision} computation: {worst[0]}"
    verdict = Verdict.EQUIVALENT if _exactness(levers) <= set("AB") else None
    return Finding("T3", lever, verdict, what, numbers=numbers)


def _exactness(levers: Mapping[str, Any]) -> set[str]:
    return set().union(*map(_class, levers)) - {"+"}


def _ratios(
    candidate: Record, reference: Record, exact: Record, *, same_layout: bool, islands: bool
) -> Iterator[tuple[str, float]]:
    """Yield the error ratio of each tensor in the order of execution; of modules those that the candidate shows."""
    forward = exact.forward if same_layout else exact.examples | {"loss": exact.losses[0]}
    shown = {n: t for n, t in forward.items() if n in candidate.forward or n not in exact.modules}
    yield from _ratios_of(candidate.forward, reference.forward, shown, islands=islands)
    backward = dict(reversed(exact.gradients.items()))
    for name, ratio in _ratios_of(candidate.gradients, reference.gradients, backward, islands=islands):
        yield f"gradient of {name}", ratio
    if _same_gradients(candidate, reference):
        yield from _ratios_of(candidate.weights, reference.weights, exact.weights, islands=islands)


def _ratios_of(
    candidate: Mapping[str, Tensor], reference: Mapping[str, Tensor], exact: Mapping[str, Tensor], *, islands: bool
) -> Iterator[tuple[str, float]]:
    """Yield the error ratio of each tensor; ``islands``: some are to be nearly exact, so that nothing is let pass."""
    sizes = {name: _rms(tensor) for name, tensor in exact.items()}
    honest = {name: _rms(reference[name] - tensor) for name, tensor in exact.items()}
    relative = sorted(honest[name] / sizes[name] for name in exact if sizes[name])
    typical = relative[len(relative) // 2]
    for name, tensor in exact.items():
        allowed = honest[name] + typical * sizes[name] / tensor.numel() ** 0.5
        if not islands:
            allowed = max(allowed, typical * sizes[name])
        error = _rms(candidate[name] - tensor)
        yield name, error / allowed if allowed else float("inf") if error else 0.0


def _rms(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def _cosine(candidate: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    found, wanted = (torch.cat([g[name].double().flatten() for name in exact]) for g in (candidate, exact))
    return float(torch.nn.functional.cosine_similarity(found, wanted, dim=0))


@lru_cache
def _exact(stage: str, large: bool) -> Record:
    return _record(stage, {}, large=large, double=True)


@lru_cache
def _honest(stage: str, precision: str) -> Record:
    if precision == "fp32":
        return _record(stage, {}, choices=_exact(stage, False).choices)
    with Rounded(SIXTEEN_BITS[precision]):
        return _record(stage, {"precision": precision}, large=True, double=True, choices=_exact(stage, True).choices)


def _record(
    stage: str,
    levers: Mapping[str, Any],
    *,
    steps: int = 1,
    large: bool = False,
    double: bool = False,
    hashed: bool = False,
    choices: Any = None,
    change: Change | None = None,
) -> Record:
    """Train a miniature and return what it computed."""
    torch._dynamo.reset()  # type: ignore[no-untyped-call]  # else arms would share dynamo's limit of recompiles
    steps = BITWISE_STEPS if hashed else steps
    miniature = build(stage, _efficiency(levers), steps=steps, large=large, change=change)
    recorder = Recorder(choices, hashed=hashed)
    with in_float64(miniature) if double else nullcontext(), deterministic() if hashed else nullcontext():
        fit(miniature, [recorder])
    return recorder.record


@contextmanager
def deterministic() -> Iterator[None]:
    """Let PyTorch take kernels that repeat themselves, where it has such."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
