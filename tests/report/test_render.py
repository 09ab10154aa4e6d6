"""Text, Markdown and HTML: everything there, nothing that a terminal or a browser would obey."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from llmtop.analysis.analyze import analyze, analyze_trace
from llmtop.document.model import BRIEF_LINES
from llmtop.format import printable, width_of
from llmtop.report.device_time import GemmTime, OperatorTime, Roof
from llmtop.report.model import Finding, Report, Span, Timeline, TimelineRow, from_json, to_json
from tests.support import written
from tests.support.data import LAUNCH_BOUND, TWO_GPUS
from tests.support.traces import Capture

EVIL = "x</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`|*_[a](b)\x1b[2J\x07\u202e" + "y" * 300


@pytest.fixture(scope="module")
def launch_bound() -> Report:
    return analyze(LAUNCH_BOUND)


def _hostile(folder: Path) -> Report:
    """A report of which every text that comes from a capture is hostile."""
    capture = Capture()
    for begin in range(0, 50_000, 1000):
        capture.range("step", begin, begin + 1000)
        capture.range(EVIL, begin + 100, begin + 900)
        capture.kernel(begin + 500, begin + 950, launched=begin + 400, name=EVIL)
    report = analyze_trace(capture.trace(folder))
    # And as if it had come from a JSON file that somebody else wrote.
    finding = Finding(
        id=EVIL, severity="warning", summary=EVIL, evidence={EVIL: EVIL}, fix=EVIL, next=EVIL, confirm=EVIL
    )
    rows = (TimelineRow(label=EVIL, lane="gpu", spans=(Span(0.0, 0.5, EVIL, EVIL),)),)
    return msgspec.structs.replace(
        report,
        source=EVIL,
        tool_version=EVIL,
        summary=EVIL,
        findings=(*report.findings, finding),
        notes=(EVIL,),
        roofline=EVIL,
        operators=(_operator(EVIL),),
        gemms=(_product(EVIL),),
        roofs=(Roof(device=0, name=EVIL, bytes_per_s=1e12, flops_per_s={EVIL: 1e15}),),
        timeline=Timeline(step=0, seconds=1.0, rows=rows),
    )


def _operator(name: str) -> OperatorTime:
    return OperatorTime(
        name=name, calls=1, launches=1, seconds=1.0, share_pct=100.0, mean_us=1e6, module=name, source=name
    )


def _product(name: str) -> GemmTime:
    return GemmTime(
        operator=name, m=64, n=64, k=64, dtype=name, calls=1, seconds=1.0, mean_us=1e6, flops=1 << 19,
        tflops_per_s=5.0, flops_per_byte=100.0, kernel=name,
    )  # fmt: skip


def test_text_has_the_verdict_first_and_every_part(launch_bound: Report) -> None:
    text = written.text(launch_bound)
    assert text.split("\n\n")[1].startswith("launch-bound: ")
    for part in ("Findings", "evidence:", "do:", "next: llmtop capture --engine py-spy", "Saves at most",
                 "Devices", "What the device time is made of", "Phases", "Idle time by cause", "Longest gaps",
                 "Kernels", "Copies", "CUDA calls", "GPU metrics"):  # fmt: skip
        assert part in text, part


def test_text_fits_the_width(launch_bound: Report, tmp_path: Path) -> None:
    for report in (launch_bound, analyze(TWO_GPUS), _hostile(tmp_path)):
        for width in (60, 80, 100, 120):
            for text in (written.text(report, width), written.brief(report, width)):
                assert max(map(width_of, text.splitlines())) <= width


def test_columns_that_do_not_fit_stand_below(launch_bound: Report) -> None:
    for title in ("GPU idle in it", "times", "launches/step"):
        assert f"  {title}" in written.text(launch_bound, 60), "no column is lost in a narrow terminal"


def test_nothing_hostile_reaches_a_terminal(tmp_path: Path) -> None:
    text = written.text(_hostile(tmp_path))
    assert text.replace("\n", "").isprintable()


def test_colour_never_says_anything_alone(launch_bound: Report) -> None:
    colored = written.text(launch_bound, style=lambda text, role: f"<{role}>{text}</>")
    assert "<critical>!! launch_bound (critical)" in colored
    assert re.sub(r"<(?:title|critical|warning|info|dim|/)>", "", colored) == written.text(launch_bound)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.seen: set[str] = set()
        self.attributes: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.seen.add(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)
        assert tag != "img"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_nothing_hostile_reaches_a_browser(tmp_path: Path) -> None:
    page = written.html(_hostile(tmp_path))
    tags = _Tags()
    tags.feed(page)
    assert "svg" in tags.seen, "the roofline is drawn"
    assert tags.scripts == 2, "only the page's own: its data and what draws them"
    assert tags.open == [], "every tag is closed"
    assert not any(name.startswith("on") for name in tags.attributes)
    assert page.replace("\n", "").isprintable()


def test_the_page_needs_nothing_from_outside(launch_bound: Report) -> None:
    page = unescape(written.html(launch_bound))
    assert "default-src 'none'" in page
    assert "script-src 'sha256-" in page
    assert not re.search(r"(src|href)=", page)
    assert page.count("<canvas>") == len(launch_bound.timeline.rows if launch_bound.timeline else ())
    assert "GEMM" in page


def test_hostile_text_stays_text_in_markdown(tmp_path: Path) -> None:
    text = written.markdown(_hostile(tmp_path))
    outside, inside = [], False
    for line in text.splitlines():
        if re.match(r"`{3,}", line):
            inside = not inside
        elif not inside:
            outside.append(line)
    prose = "\n".join(outside)
    assert not inside, "every fence is closed"
    assert not re.search(r"(?<!\\)<script", prose)
    assert not re.search(r"(?<!\\)\[a(?<!\\)\]\(b\)", prose)
    assert text.replace("\n", "").isprintable()


def test_markdown_tables_keep_their_columns(tmp_path: Path) -> None:
    rows = [line for line in written.markdown(_hostile(tmp_path)).splitlines() if line.startswith("| ")]
    for line in rows:
        cells = re.split(r"(?<!\\)\|", line)
        assert len(cells) >= 5


def test_a_report_survives_json(launch_bound: Report) -> None:
    data = to_json(launch_bound)
    assert from_json(data) == launch_bound
    assert written.text(from_json(data)) == written.text(launch_bound)


def test_a_report_of_a_later_version_can_still_be_read(launch_bound: Report) -> None:
    raw = msgspec.json.decode(to_json(launch_bound))
    raw["something_new"] = [1, 2]
    raw["devices"][0]["more"] = {"a": 1}
    assert from_json(msgspec.json.encode(raw)) == launch_bound


def test_the_contract_s_fields_are_all_there() -> None:
    raw = msgspec.json.decode(to_json(analyze(TWO_GPUS)))
    assert {"schema", "source", "engine", "window_seconds", "devices", "phases", "kernels", "copies", "api",
            "gaps", "verdict", "findings"} <= set(raw)  # fmt: skip
    assert {"device", "pid", "busy_pct", "kernel_pct", "memcpy_pct", "nccl_pct", "nccl_exposed_pct", "kernels",
            "kernels_under_10us_pct"} <= set(raw["devices"][0])  # fmt: skip
    assert {"id", "severity", "share_pct", "summary", "evidence", "fix", "next"} <= set(raw["findings"][0])


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_what_is_to_be_read_first_fits_sixty_lines(width: int, launch_bound: Report, tmp_path: Path) -> None:
    for report in (launch_bound, analyze(TWO_GPUS), _hostile(tmp_path)):
        text = written.brief(report, width)
        assert len(text.splitlines()) <= BRIEF_LINES
        assert printable(report.summary, 20)[:19] in text
        assert "--full" in text.splitlines()[-1] or "--full" in text.splitlines()[-2]
        prose = text.split("\nDevices")[0]
        assert all(width_of(line) <= max(width, 60) for line in prose.splitlines() if " " in line.strip())


def test_operators_are_read_first_too(launch_bound: Report) -> None:
    rows = tuple(_operator(f"aten::number_{number}") for number in range(40))
    text = written.brief(msgspec.structs.replace(launch_bound, operators=rows))
    assert "aten::number_2" in text
    assert text.index("aten::number_0") < text.index("\nKernels")
    assert len(text.splitlines()) <= BRIEF_LINES


def test_a_report_of_very_much_is_brief_too(launch_bound: Report) -> None:
    gpus = tuple(msgspec.structs.replace(launch_bound.devices[0], device=number) for number in range(72))
    phases = tuple(
        msgspec.structs.replace(launch_bound.phases[0], name=f"phase {number}") for number in range(200)
    )
    notes = tuple(f"note {number}" for number in range(50))
    found = launch_bound.findings * 20
    huge = msgspec.structs.replace(launch_bound, devices=gpus, phases=phases, notes=notes, findings=found)
    text = written.brief(huge)
    assert len(text.splitlines()) <= BRIEF_LINES
    assert f"{len(found) - 3} more findings, 50 notes" in text
    assert "Kernels" in text


def test_the_worst_findings_come_first_with_what_to_do(launch_bound: Report) -> None:
    text = written.brief(launch_bound, 200)
    assert text.index("!! The host launches kernels more slowly") < text.index("do: ") < text.index("next: ")
    assert "evidence" not in text.split("--full")[0]
    assert "Longest gaps" not in text


def test_long_names_lose_their_middle(launch_bound: Report) -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)"
    kernel = msgspec.structs.replace(launch_bound.kernels[0], name=name)
    text = written.brief(msgspec.structs.replace(launch_bound, kernels=(kernel,)), 100)
    (line,) = (line for line in text.splitlines() if "void at" in line)
    assert "…" in line
    assert ">(int, float)" in line


def test_an_empty_report_can_be_shown() -> None:
    report = Report(source="nothing", engine="nsys", window_seconds=0.0)
    for render in (written.text, written.brief, written.markdown, written.html):
        assert "nothing" in render(report)


def test_what_a_table_says_to_leave_out_is_left_out(launch_bound: Report) -> None:
    kernel = launch_bound.kernels[0]
    many = tuple(msgspec.structs.replace(kernel, name=f"kernel_{i:03d}") for i in range(200))
    report = msgspec.structs.replace(launch_bound, kernels=many)
    for text in (written.text(report), written.markdown(report)):
        shown = set(re.findall(r"kernel.{0,2}_(\d{3})", text))
        left_out = 200 - len(shown)
        assert 0 < len(shown) < 50
        assert f"… and {left_out} more" in text
