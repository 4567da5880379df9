"""The findings of a parity run as JUnit XML, for the board of a continuous integration.

Only what is proved, or what a tier looked at and found nothing against, counts as passed. INCONCLUSIVE and
ENV_NONDETERMINISTIC are errors (the question could not be answered), INFERIOR and NOT_ENGAGED failures; a refused lever
is skipped.
"""

import re
from xml.etree import ElementTree as ET

from dubsar.pipelines.parity.report.sections import MEANING, conclusion, number
from dubsar.pipelines.parity.result import ParityResult
from dubsar.pipelines.parity.statistics import Verdict

_ERRORS = {Verdict.INCONCLUSIVE, Verdict.ENV_NONDETERMINISTIC}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what XML 1.0 cannot hold


def junit(result: ParityResult) -> bytes:
    """Return one test case per finding and per metric, and one for the verdict of the whole."""
    name = f"parity.{result.stage}"
    suite = ET.Element("testsuite", name=name)
    for finding in result.findings:
        what = f"{finding.what} (culprit: {finding.culprit})" if finding.culprit else finding.what
        case = _case(suite, f"{name}.{finding.tier}", finding.lever)
        if finding.verdict is None and finding.refused:
            ET.SubElement(case, "skipped", message=_printable(what))
        else:
            _judge(case, finding.verdict, what)
    for o in result.outcomes:
        what = f"gain {number(o.gain)} ({number(o.low)} to {number(o.high)}) at a margin of {number(o.margin)} pp"
        _judge(_case(suite, f"{name}.metrics", o.metric), o.verdict, f"{conclusion(o)}: {what}")
    _judge(_case(suite, name, "verdict"), result.verdict, MEANING[result.verdict])
    for kind, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(kind, str(len(list(suite.iter(tag)))))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ET.Element, classname: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_printable(classname), name=_printable(name))


def _judge(case: ET.Element, verdict: Verdict | None, what: str) -> None:
    if verdict is None or verdict.proves_parity:
        ET.SubElement(case, "system-out").text = _printable(what)
    else:
        tag = "error" if verdict in _ERRORS else "failure"
        ET.SubElement(case, tag, type=str(verdict), message=_printable(what))


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", text)
