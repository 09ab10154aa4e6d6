"""The page of a report in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmtop.analysis.analyze import analyze
from llmtop.report import render_html
from llmtop.report.device_time import GemmTime, Roof
from llmtop.report.model import Finding, Report, Span, Timeline, TimelineRow
from tests.support.browser import NO_BROWSER, Page, find_browser
from tests.support.data import LAUNCH_BOUND

pytestmark = [pytest.mark.browser, pytest.mark.skipif(find_browser() is None, reason=NO_BROWSER)]

HOSTILE = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>"
STEP = Timeline(
    step=3,
    seconds=0.1,
    rows=(
        TimelineRow(
            label="GPU 0",
            lane="gpu",
            spans=(
                Span(start=0.0, seconds=0.04, kind="GEMM", text="aten::mm sm90_gemm", fill=1.0),
                Span(start=0.05, seconds=0.05, kind="NCCL", text=HOSTILE, fill=0.5),
            ),
        ),
        TimelineRow(
            label="phases", lane="phases", spans=(Span(start=0.0, seconds=0.1, kind="forward", text="f"),)
        ),
    ),
)
REPORT = Report(
    source="x.sqlite",
    engine="nsys",
    window_seconds=0.1,
    verdict="gpu_bound",
    summary="as it should be",
    timeline=STEP,
    findings=(Finding(id="launch_bound", severity="warning", summary=HOSTILE, evidence={HOSTILE: HOSTILE}),),
)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    (tmp_path / "report.html").write_text(render_html.render(REPORT))
    with Page(tmp_path / "report.html", tmp_path / "profile") as page:
        yield page


def spot(page: Page, row: int, share: float) -> tuple[float, float]:
    """The point at that share of a row of the timeline."""
    place = f"document.querySelectorAll('canvas')[{row}].getBoundingClientRect()"
    left, top, width, height = (page.value(f"{place}.{side}") for side in ("left", "top", "width", "height"))
    return left + share * width, top + height / 2


def said(page: Page) -> str | None:
    """What the page says of the piece below the mouse."""
    return page.value("(box => box.hidden ? null : box.textContent)(document.getElementById('said'))")


def test_it_runs_its_script_and_asks_for_nothing(page: Page) -> None:
    assert page.value("document.getElementById('range').textContent") == "0.000 ms to 100.0 ms"
    assert page.complaints() == []
    assert [url for url in page.requests() if not url.startswith("file:")] == []
    assert len(page.requests()) == 1


def test_what_a_report_says_stays_text(page: Page) -> None:
    assert page.value("window.hurt") is None
    assert page.value("document.images.length") == 0
    assert page.value("document.querySelector('.finding').textContent.includes('onerror')") is True


def test_the_timeline_is_drawn_and_says_what_is_below_the_mouse(page: Page) -> None:
    inked = "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))"
    assert page.value(f"[...document.querySelectorAll('canvas')].every({inked})") is True
    page.mouse("mouseMoved", *spot(page, 0, 0.2))
    assert said(page) == "aten::mm sm90_gemm (GEMM): 40.00 ms at 0.000 ms"
    page.mouse("mouseMoved", *spot(page, 0, 0.45))
    assert said(page) is None, "a gap"
    page.mouse("mouseMoved", *spot(page, 0, 0.9))
    assert (said(page) or "").startswith("</script><script>window.hurt")


def test_it_zooms_pans_and_returns(page: Page) -> None:
    shown = "document.getElementById('range').textContent"
    x, y = spot(page, 0, 0.5)
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-120)
    assert page.value(shown) == "10.00 ms to 90.00 ms"
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseMoved", spot(page, 0, 0.25)[0], y, button="left", buttons=1)
    page.mouse("mouseReleased", spot(page, 0, 0.25)[0], y, button="left", clickCount=1)
    assert page.value(shown) == "20.00 ms to 100.0 ms", "no further than the end"
    for count in (1, 2):
        page.mouse("mousePressed", x, y, button="left", clickCount=count)
        page.mouse("mouseReleased", x, y, button="left", clickCount=count)
    assert page.value(shown) == "0.000 ms to 100.0 ms"


def test_the_roofline_is_drawn_and_its_words_stay_text(tmp_path: Path) -> None:
    product = GemmTime(
        operator=HOSTILE, m=64, n=64, k=64, dtype="bf16", calls=1, seconds=1.0, mean_us=1e6, flops=1 << 19,
        tflops_per_s=5.0, flops_per_byte=100.0,
    )  # fmt: skip
    roof = Roof(device=0, name=HOSTILE, bytes_per_s=1e12, flops_per_s={"bf16": 1e15})
    report = replace(REPORT, roofline="near", gemms=(product,), roofs=(roof,))
    (tmp_path / "report.html").write_text(render_html.render(report))
    with Page(tmp_path / "report.html", tmp_path / "profile", 500) as page:
        assert page.complaints() == []
        assert page.value("window.hurt") is None
        assert page.value("document.images.length") == 0
        circle = "document.querySelector('svg.roofline circle')"
        assert page.value(f"{circle}.getBoundingClientRect().width") > 4
        assert page.value(f"{circle}.textContent.startsWith({HOSTILE!r}.slice(0, 9))") is True
        assert page.value("document.querySelector('svg.roofline').getBoundingClientRect().right") <= 500
        assert page.value(OVERFLOWING) == []


OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(one =>
  one.scrollWidth > one.clientWidth + 2 && one.clientWidth > 0 && getComputedStyle(one).overflowX === 'visible'
).map(one => one.outerHTML.slice(0, 80))
"""


@pytest.mark.parametrize("width", [500, 1200])
def test_a_real_report_fits_the_page(tmp_path: Path, width: int) -> None:
    (tmp_path / "report.html").write_text(render_html.render(analyze(LAUNCH_BOUND)))
    with Page(tmp_path / "report.html", tmp_path / "profile", width) as page:
        assert page.complaints() == []
        assert page.value(OVERFLOWING) == []
        assert page.value("document.querySelectorAll('table tr').length") > 20


def test_a_page_without_a_timeline_has_no_script(tmp_path: Path) -> None:
    page = render_html.render(replace(REPORT, timeline=None))
    assert "<script" not in page
