"""The page of a report in a real browser."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from llmtop.analysis.analyze import analyze
from llmtop.analysis.load_report import load_reports
from llmtop.report.device_time import GemmTime, Roof
from llmtop.report.model import Finding, KernelTime, Report, Span, Timeline, TimelineRow
from tests.support import written
from tests.support.browser import NO_BROWSER, Page, find_browser
from tests.support.data import LAUNCH_BOUND
from tests.support.traces import Capture, write_chrome, write_sqlite

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
    (tmp_path / "report.html").write_text(written.html(REPORT))
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
    (tmp_path / "report.html").write_text(written.html(report))
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
    (tmp_path / "report.html").write_text(written.html(analyze(LAUNCH_BOUND)))
    with Page(tmp_path / "report.html", tmp_path / "profile", width) as page:
        assert page.complaints() == []
        assert page.value(OVERFLOWING) == []
        assert page.value("document.querySelectorAll('table tr').length") > 20


WORDS_CUT = """
[...(function* () {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node; node = walk.nextNode();) {
    if (node.parentElement.closest("script, pre, [hidden], noscript, svg")) continue;
    for (const word of node.data.matchAll(/[A-Za-z0-9]{2,}/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(one => Math.round(one.top))).size > 1) yield word[0];
    }
  }
})()]
"""
"""Words that stand on two lines."""


@pytest.mark.parametrize("width", [420, 1200])
def test_no_word_is_broken_and_long_names_end_a_line_between_their_parts(tmp_path: Path, width: int) -> None:
    long = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_cublas"
    kernel = KernelTime(
        name=long, kind="GEMM", count=1, seconds=1.0, share_pct=100.0, mean_us=1.0, min_us=1.0, max_us=1.0,
        operator="aten::_scaled_dot_product_flash_attention_backward",
    )  # fmt: skip
    finding = Finding(id="hot_kernel", severity="info", summary=f"{long} takes it all", evidence={"kernel": long})
    report = replace(REPORT, kernels=(kernel,), findings=(finding,), source=f"/data/{long}/{long}.sqlite")
    (tmp_path / "report.html").write_text(written.html(report))
    with Page(tmp_path / "report.html", tmp_path / "profile", width) as page:
        assert page.value(WORDS_CUT) == []
        assert page.value("document.documentElement.scrollWidth") <= width
        cell = "[...document.querySelectorAll('td')].find(one => one.textContent.startsWith('sm90'))"
        assert page.value(f"{cell}.textContent") == long, "what is copied is the name"


def two_gpus(folder: Path) -> Report:
    """Two ranks, six steps each, operators over the kernels."""
    paths = []
    for rank in range(2):
        capture = Capture(pid=100 + rank, device=rank)
        for step in range(6):
            begin = step * 10_000
            capture.range(f"ProfilerStep#{step}", begin, begin + 10_000)
            capture.operator("aten::mm", begin + 5, begin + 60)
            capture.kernel(begin + 100, begin + 9_000, launched=begin + 10, name="sm90_gemm")
        told = {"distributedInfo": {"rank": rank, "world_size": 2}}
        paths.append(write_chrome(folder / f"rank{rank}.json", capture, **told))
    return load_reports(paths, page=True)


def test_all_gpus_and_all_steps_are_there_and_each_piece_says_operator_and_kernel(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(written.html(two_gpus(tmp_path)))
    with Page(tmp_path / "report.html", tmp_path / "profile") as page:
        assert page.complaints() == []
        heads = page.value("[...document.querySelectorAll('h3')].map(one => one.textContent)")
        assert heads == ["GPU 0, rank 0 (pid 100)", "GPU 1, rank 1 (pid 101)"]
        labels = page.value("[...document.querySelectorAll('.lane span')].map(one => one.textContent)")
        each = ["steps", "stream 7", "idle", "host (main)"]
        assert labels == [*each, *each]
        for device in range(2):
            for step in range(5):
                middle = (step + 0.5) / 5
                page.mouse("mouseMoved", *spot(page, 4 * device, middle))
                assert (said(page) or "").startswith(f"step {step} (step): 10.00 ms")
                page.mouse("mouseMoved", *spot(page, 4 * device + 1, middle))
                assert (said(page) or "").startswith("aten::mm: sm90_gemm (GEMM): 8.900 ms at ")


@pytest.mark.slow("a page of its own; test_it_zooms_pans_and_returns moves as well")
def test_one_goes_from_step_to_step_and_back_to_all(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(written.html(two_gpus(tmp_path)))
    with Page(tmp_path / "report.html", tmp_path / "profile") as page:
        assert page.value(SHOWN) == "0.000 ms to 50.00 ms"
        seen = [click(page, button) for button in ("after", "after", "before", "usual", "all", "before", "after")]
        assert seen == [
            "0.000 ms to 10.00 ms", "10.00 ms to 20.00 ms", "0.000 ms to 10.00 ms", "20.00 ms to 30.00 ms",
            "0.000 ms to 50.00 ms", "40.00 ms to 50.00 ms", "40.00 ms to 50.00 ms",
        ]  # fmt: skip


SHOWN = "document.getElementById('range').textContent"


def click(page: Page, button: str) -> str:
    """What is shown after a click on a button."""
    page.value(f"document.getElementById('{button}').click()")
    page.drawn()
    return str(page.value(SHOWN))


def test_a_report_of_one_step_has_nothing_to_go_through(page: Page) -> None:
    assert page.value("[...document.querySelectorAll('button')].filter(one => !one.hidden).length") == 1


@pytest.mark.slow("test_what_is_too_dense_is_joined_and_nothing_is_lost finds the same fault")
def test_a_million_events_make_a_page_under_two_megabytes(tmp_path: Path) -> None:
    path = million(tmp_path / "million.sqlite")
    page_path = tmp_path / "report.html"
    page_path.write_text(written.html(load_reports([path], page=True)))
    assert page_path.stat().st_size < 2_000_000
    with Page(page_path, tmp_path / "profile") as page:
        assert page.complaints() == []
        assert page.value("document.querySelectorAll('h3').length") == 8
        inked = "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))"
        assert page.value(f"[...document.querySelectorAll('canvas')].every({inked})") is True


def million(path: Path) -> Path:
    """Half a million kernels of 3000 long names on eight GPUs, each with its launch."""
    capture = write_sqlite(path, [Capture()])
    database = sqlite3.connect(capture)
    names = [(n, f"void kernel_{n}<{'at::native::Functor, ' * 12}{n}>(float*)") for n in range(10, 3010)]
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [*names, (3, "cudaLaunchKernel")])
    for device in range(8):
        process = (100 + device) << 24
        at = [(number * 8_000, number) for number in range(62_500)]
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, ?, ?, ?, ?)",
            (
                (begin + 4_000, begin + 9_000 + n % 900, device, n, process, 10 + n % 3000, 10 + n % 3000)
                for begin, n in at
            ),
        )
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 3)",
            ((begin, begin + 3_000, process + 1, n) for begin, n in at),
        )
        database.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, 'step', NULL, ?, 0)",
            ((step * 5_000_000, (step + 1) * 5_000_000, process + 1) for step in range(100)),
        )
    database.commit()
    database.close()
    return path


def test_a_page_without_a_timeline_has_no_script(tmp_path: Path) -> None:
    page = written.html(replace(REPORT, timeline=None))
    assert "<script" not in page
