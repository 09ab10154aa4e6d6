"""What a script may pass by mistake: it is understood or left out with a word, and publishing goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.protocol import wire
from tests.support.trainings import Heard, Training, connect

GOES_ON = """
import sys, time
sys.stdin.readline()
while True:
    with llmtop.step(tokens=10), llmtop.phase("forward"):
        time.sleep(0.002)
    llmtop.log(loss=0.5)
"""


def publishes(runtime_dir: Path, script: str) -> tuple[wire.Hello, Heard, str]:
    """Run it, then a plain loop; what a monitor hears of both, and what the training wrote to stderr."""
    with Training(f"import llmtop\n{script}\n{GOES_ON}") as training:
        first = Heard(connect(runtime_dir, training))
        training.go()
        first.until(lambda: len(first.steps) > 20 and any("loss" in batch.metrics for batch in first.batches))
        late = Heard(connect(runtime_dir, training))
        late.until(lambda: len(late.steps) > 20)
        here = len(first.steps)
        first.until(lambda: len(first.steps) > here + 20)
        training.kill()
        return late.connection.hello, first, training.communicate(timeout=240)[1]


@pytest.mark.slow(
    "a value of each kind; each starts a process",
    kept=(
        "total_steps='10k', warmup_steps=decimal.Decimal(3)-told3",
        "params='350M'-told5",
        "flops_per_token='1e9', params='x'-told9",
        "dtype=numpy.dtype('float32')-told14",
        "dtype='BF16-mixed'-told15",
    ),
)
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("total_steps='10000'", {"total_steps": 10_000}),
        ("total_steps=2500.0", {"total_steps": 2500}),
        ("total_steps='1e4'", {"total_steps": 10_000}),
        ("total_steps='10k', warmup_steps=decimal.Decimal(3)", {"total_steps": 10_000, "warmup_steps": 3}),
        (
            "total_steps=numpy.int64(7), warmup_steps=fractions.Fraction(4, 2)",
            {"total_steps": 7, "warmup_steps": 2},
        ),
        ("params='350M'", {"flops_per_token": 6 * 350e6}),
        ("params=' 7b '", {"flops_per_token": 6 * 7e9}),
        ("params='1.3T'", {"flops_per_token": 6 * 1.3e12}),
        ("params=numpy.float32(5)", {"flops_per_token": 30.0}),
        ("flops_per_token='1e9', params='x'", {"flops_per_token": 1e9}),
        ("dtype=torch.bfloat16", {"dtype": "bf16"}),
        ("dtype=torch.float8_e4m3fn", {"dtype": "fp8"}),
        ("dtype='torch.float16'", {"dtype": "fp16"}),
        ("dtype=numpy.float32", {"dtype": "fp32"}),
        ("dtype=numpy.dtype('float32')", {"dtype": "fp32"}),
        ("dtype='BF16-mixed'", {"dtype": "bf16"}),
        ("dtype=Precision.HALF", {"dtype": "fp16"}),
        ("dtype='int4'", {"dtype": "int4"}),
    ],
)
def test_what_can_be_understood_is(runtime_dir: Path, arguments: str, told: dict[str, object]) -> None:
    modules = [name for name in ("torch", "numpy", "decimal", "fractions") if name in arguments]
    script = "".join(f"import {name}\n" for name in modules)
    script += f"import enum\nclass Precision(str, enum.Enum): HALF = 'fp16'\nllmtop.attach({arguments})"
    hello, _, err = publishes(runtime_dir, script)
    assert {name: getattr(hello, name) for name in told} == told
    assert err == ""


class Raises:
    """The source of an object whose methods all fail."""

    SOURCE = """
class Raises:
    def __float__(self): raise RuntimeError("not now")
    __int__ = __index__ = __str__ = __repr__ = __float__
    @property
    def is_cuda(self): raise RuntimeError("nor this")
"""


@pytest.mark.slow(
    "a value of each kind; each starts a process",
    kept=(
        "total_steps=10**5000",
        "total_steps=float('nan')",
        "total_steps=True",
        "total_steps='many'",
        "total_steps=Raises()",
        "params=1e308",
        "flops_per_token=object()",
        "dtype=Raises()",
    ),
)
@pytest.mark.parametrize(
    "argument",
    [
        "total_steps=10**30",
        "total_steps=10**5000",
        "total_steps=float('inf')",
        "total_steps=float('nan')",
        "total_steps=2500.5",
        "total_steps=-1",
        "total_steps=0",
        "total_steps=True",
        "total_steps='many'",
        "total_steps='9' * 100_000",
        "total_steps=[10]",
        "total_steps=Raises()",
        "warmup_steps=10.5",
        "warmup_steps=-3",
        "params='big'",
        "params=float('nan')",
        "params=-7e9",
        "params=1e308",
        "flops_per_token=0",
        "flops_per_token=object()",
        "dtype=object()",
        "dtype=Raises()",
        "dtype=''",
        "dtype=16",
    ],
)
def test_what_cannot_is_left_out_with_one_warning_and_the_rest_is_kept(runtime_dir: Path, argument: str) -> None:
    name = argument.partition("=")[0]
    good = {"total_steps": 500, "flops_per_token": 6e9, "dtype": "bf16", "warmup_steps": 4}
    kept = {key: value for key, value in good.items() if key != ("flops_per_token" if name == "params" else name)}
    calls = f"llmtop.attach({argument}, **{kept!r})\n" * 3
    hello, heard, err = publishes(runtime_dir, Raises.SOURCE + calls)
    assert {key: getattr(hello, key) for key in kept} == kept
    assert hello.total_steps is None or name != "total_steps"
    assert err.startswith(f"llmtop: attach({name}=) takes ")
    assert (err.count("\n"), len(err) < 300) == (1, True)
    assert heard.steps[-1].tokens == 10


@pytest.mark.parametrize(
    ("call", "metrics"),
    [
        ("llmtop.log(total_flops=10**25, small=3)", {"total_flops": 1e25, "small": 3.0}),
        ("llmtop.log(ok=1.0, total_flops=-2**64)", {"ok": 1.0, "total_flops": -(2.0**64)}),
        ("llmtop.log(**{'a' + chr(0xd800): 1.0, 'ok': 2.0})", {"a·": 1.0, "ok": 2.0}),
        ("llmtop.log(**{'x' * 100: 1.0, 'esc' + chr(27): 2.0})", {"x" * 64: 1.0, "esc·": 2.0}),
        ("llmtop.log(flag=True, half=fractions.Fraction(1, 2), d=decimal.Decimal('0.25'))",
         {"flag": 1.0, "half": 0.5, "d": 0.25}),
        ("llmtop.log(i=Whole(7), f=Real(0.5), n=numpy.float16(2))",
         {"i": 7.0, "f": 0.5, "n": 2.0}),
        ("llmtop.log(bad=Raises(), none=None, words='so so', ok=1.0)", {"ok": 1.0}),
        pytest.param(
            "llmtop.log(bad=torch.zeros(3), worse=torch.zeros(1, device='meta'), t=torch.tensor([3]))", {"t": 3.0},
            marks=pytest.mark.slow("imports torch; the others are read in the same way"),
        ),
    ],
)  # fmt: skip
def test_a_metric_is_understood_or_left_out_and_the_others_are_kept(
    runtime_dir: Path, call: str, metrics: dict[str, float]
) -> None:
    modules = [name for name in ("torch", "numpy", "decimal", "fractions") if name in call]
    script = "".join(f"import {name}\n" for name in modules) + Raises.SOURCE
    script += "class Whole(int): pass\nclass Real(float): pass\nllmtop.attach()\n"
    _, heard, err = publishes(runtime_dir, script + call)
    assert heard.metrics == {**metrics, "loss": 0.5}
    assert err == ""


def test_a_number_that_is_too_large_and_names_over_the_limit_are_noted(runtime_dir: Path) -> None:
    script = """
llmtop.attach()
llmtop.log(huge=10**400)
for number in range(1000):
    llmtop.log(**{f"loss_{number}": 1.0})
llmtop.log(loss_3=7)
"""
    # The plain loop's own "loss" comes too late for the table, so the first names are watched for.
    with Training(f"import llmtop\n{script}\n{GOES_ON}") as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        heard.until(lambda: len(heard.steps) > 20)
        assert len(heard.metrics) == 64
        assert heard.metrics["loss_3"] == 7.0
        note = heard.connection.hello.note or ""
        assert "metrics too large for a float (1)" in note
        assert "metrics over the limit of 64 names" in note


@pytest.mark.parametrize(
    "step",
    [
        "llmtop.step(tokens=10**400, samples=float('nan'), index=10**30)",
        "llmtop.step(tokens=Raises(), samples='many', index=Raises())",
        "llmtop.step(tokens=float('inf'), samples=2**63, index=float('inf'))",
        "llmtop.step(tokens=-2**64, samples=True, index='7')",
        "llmtop.step(kind=object())",
        "llmtop.step(kind='eval' + chr(0xd800))",
    ],
)
@pytest.mark.parametrize("concurrent", [False, True])
def test_a_step_s_odd_numbers_end_nothing(runtime_dir: Path, step: str, concurrent: bool) -> None:
    script = f"{Raises.SOURCE}\nllmtop.attach()\n"
    if concurrent:
        script += "with llmtop.step(kind='request'): pass\n"
        step = step if "kind" in step else step.replace("step(", "step(kind='request', ")
    script += f"for _ in range(3):\n    with {step}: pass\n"
    with Training(f"import llmtop\n{script}\n{GOES_ON}") as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        heard.until(lambda: 0.5 in heard.metrics.values())
        assert len(heard.steps) >= (1 if concurrent else 3)
        training.kill()
        err = training.communicate(timeout=240)[1]
    assert err.count("\n") == ("kind=" in step and "request" not in step)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("'a' + chr(0xd800)", "a·"),
        ("''", "unnamed"),
        ("None", "None"),
        ("12", "12"),
        ("Raises()", "unnamed"),
        ("['list']", "['list']"),
        ("'x' * 100_000", "x" * 64),
        ("chr(27) + '[2J'", "·[2J"),
    ],
)
def test_a_phase_of_any_name_is_a_phase(runtime_dir: Path, name: str, shown: str) -> None:
    script = f"{Raises.SOURCE}\nllmtop.attach()\nwith llmtop.step(), llmtop.phase({name}): pass"
    _, heard, err = publishes(runtime_dir, script)
    assert [phase.name for phase in heard.steps[0].phases] == [shown]
    assert err == ""


@pytest.mark.parametrize("closed", ["sys.stderr = None", "sys.stderr.close()", "os.close(2)"])
def test_a_warning_that_nobody_can_read_harms_nothing(runtime_dir: Path, closed: str) -> None:
    script = f"import os, sys\n{closed}\nllmtop.attach(total_steps='many', dtype='bf16')"
    hello, _, err = publishes(runtime_dir, script)
    assert (hello.total_steps, hello.dtype, err) == (None, "bf16", "")


def test_ranks_that_are_none_are_not_told(runtime_dir: Path) -> None:
    with Training(f"import llmtop\nllmtop.attach()\n{GOES_ON}", RANK="9" * 5000, WORLD_SIZE="8") as training:
        heard = Heard(connect(runtime_dir, training))
        training.go()
        heard.until(lambda: len(heard.steps) > 20)
        assert heard.connection.hello.rank is None


def test_an_answer_that_cannot_be_sent_ends_nothing(runtime_dir: Path) -> None:
    script = """
from llmtop.protocol import wire
from llmtop.instrument.record import recorder
llmtop.attach()
def on_capture(request, send):
    if request.id == "path":
        raise OSError("/tmp/\\udcff is full")
    send(wire.CaptureState(id=request.id, state=object()))
    send(wire.CaptureState(id=request.id, state="done", path="x" * (1 << 21)))
    send(wire.CaptureState(id=request.id, state="armed"))
recorder.get().server.on_capture = on_capture
"""
    with Training(f"import llmtop\n{script}\n{GOES_ON}") as training:
        heard, other = Heard(connect(runtime_dir, training)), Heard(connect(runtime_dir, training))
        training.go()
        other.until(lambda: other.steps)  # from now on it is told what the other asks for, too
        for name in ("odd", "path"):
            heard.connection.send(wire.CaptureRequest(id=name, engine="torch.profiler", path="/tmp/x"))

        def states() -> list[tuple[str, str, str]]:
            found = [one for one in other.messages if isinstance(one, wire.CaptureState)]
            return [(one.id, one.state, one.detail) for one in found]

        heard.until(lambda: len(heard.steps) > 20)
        other.until(lambda: len(states()) == 2)
        assert states() == [("odd", "armed", ""), ("path", "failed", "cannot capture: /tmp/· is full")]
        # How often is told with the next Hello; the first time brings one.
        other.until(lambda: "could not be encoded (" in (other.connection.hello.note or ""))
