"""Every sentence that a user may read, whole and with examples filled in: python -m tests.support.words [KIND…]

Rules, GPU errors, costs of loading and keys are written by the tables and functions of the product. All other
sentences are read from the source: in texts of alerts, in `raise` (errors), in the output of `llmtop doctor`,
in the
help of commands, and on screens. An f-string is followed to the strings that it is made of
(`tests/support/text_variants.py`), so that a piece is printed within its sentence and not again by itself.
`tests/cli/test_words.py` holds them against the rules of CONTRIBUTING.md, section "Words".
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, NamedTuple, get_args

from llmtop.hardware.gpu_errors import XIDS, xid_text
from llmtop.loading import words as loading_words
from llmtop.model.bottlenecks import BOTTLENECKS, BOUND_IDS
from llmtop.model.snapshot import Gpu, Host, LoadingCost, Snapshot
from llmtop.rules import COMMUNICATOR_RULES, GPU_RULES, JOB_RULES, RANK_RULES
from llmtop.rules.engine import Rules
from tests.support.processes import REPOSITORY
from tests.support.text_variants import STRINGS, Module, Scope, Variant, called, module_of, value_of, variants
from tests.support.word_examples import FRAMES
from tests.support.word_values import HEALTH_FRAMES
from tui.core import keys
from tui.core.key_lookup import title_of
from tui.screens import help as help_screen

Kind = Literal["alert", "doctor", "error", "help", "screen"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

LABEL_WORDS: Final = 7
"""Words of the longest label of a screen without a full stop."""
HELP: Final = ("llmtop/cli", "llmtop/__main__.py")
_BY_HAND: Final = ("tui/core/keys.py", "tui/screens/help.py")
"""Files whose texts are taken from their tables."""


class Sentence(NamedTuple):
    """A sentence with examples filled in."""

    kind: Kind
    place: str
    """File and line."""
    text: str

    @property
    def words(self) -> int:
        """The words of its longest part between full stops, semicolons, colons and the arrow before advice."""
        parts = re.split(r"[.;:!?](?:\s|$)|\n| → ", self.text)
        return max(len(part.split()) for part in parts)


class _Root(NamedTuple):
    """A text of the source before it is known whether another text has it within."""

    kind: Kind
    node: ast.AST
    scope: Scope
    frame: str = "{}"
    """What the program prints around it."""


@cache
def sentences() -> list[Sentence]:
    """All sentences, by kind and place."""
    roots = [*_alerts(), *_health_alerts(), *_inference_advice(), *_doctor(), *_errors(), *_help(), *_screens()]
    texts = [(root, variants(root.node, root.scope)) for root in roots]
    within = {
        string
        for root, found in texts
        for one in found
        for string in one.strings - {id(part) for part in ast.walk(root.node)}
    }
    made = {*_rules(), *_gpu_errors(), *_loading(), *_keys(), *_reading()}
    for root, found in texts:
        if id(root.node) not in within:
            made |= set(_written(root, found))
    return sorted(made, key=lambda one: (KINDS.index(one.kind), one.place.rpartition(":")[0], one.text))


def _written(root: _Root, found: list[Variant]) -> Iterator[Sentence]:
    """The variants of a text that have a string which no variant before them has."""
    seen: set[int] = set()
    place = root.scope.module.place
    for one in found:
        text = " ".join(one.text.split())
        if seen and (not _adds_words(one, seen) or re.search(r"[;,(] ?[.,;)]|^[;,] |, $", text)):
            continue  # nothing new, or a piece that is empty only together with another one
        seen |= one.strings
        if _is_sentence(text) and not (root.kind == "screen" and _is_label(text, place)):
            framed = (one for file, meant, one in FRAMES if re.match(file, place) and re.search(meant, text))
            frame = next(framed, "{}") if root.frame == "{}" else root.frame
            yield Sentence(root.kind, f"{place}:{getattr(root.node, 'lineno', 0)}", frame.replace("{}", text))


def _adds_words(one: Variant, seen: set[int]) -> bool:
    """Whether a variant has a string of two words or more that no variant before it has."""
    return any(" " in STRINGS.get(string, "").strip() for string in one.strings - seen)


def _is_sentence(text: str) -> bool:
    """Whether it has three words, and is no address, path or style."""
    return sum(bool(re.search(r"[^\W\d_]{2}", word)) for word in text.split()) >= 3 and not re.match(
        r"https?://\S+$|[\w./-]+\.(py|json|tcss)|\w+ \{ |(llmtop|py-spy|sudo|pip) [^.;]*$", text
    )


def _is_label(text: str, place: str) -> bool:
    """Whether it is a title, a cell of a table or a piece, which has no meaning without what is around it."""
    if any(re.match(file, place) and re.search(meant, text) for file, meant, _ in FRAMES):
        return False
    if re.search(r"[.?!]$", text) and not re.match(r"[:;,·]", text):
        return False
    return len(text.split()) < LABEL_WORDS or bool(re.match(r"[:;,·‹%]", text))


def _modules(*places: str) -> Iterator[Module]:
    for place in places:
        path = REPOSITORY / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield module_of(file)


def _rules() -> Iterator[Sentence]:
    """What the screen of an alert says of its rule."""
    for rules in (GPU_RULES, RANK_RULES, JOB_RULES, COMMUNICATOR_RULES):
        for rule in rules:
            words = BOTTLENECKS[rule.id]
            place = f"screen of alert {words.badge}:"
            yield Sentence("alert", place, f"means: {words.heading}. {rule.text.meaning}")
            yield Sentence("alert", place, f"holds if: {rule.text.condition}")
            yield Sentence("alert", place, f"based on: {rule.text.source}")
    for bound in BOUND_IDS:
        words = BOTTLENECKS[bound]
        lost = f"41.3 % of the step without the profiler is lost: 29.8 % to {words.title}, 11.5 % to gaps."
        yield Sentence("alert", "verdict of a report:", f"{words.name}: {words.sentence}. {lost}")


def _gpu_errors() -> Iterator[Sentence]:
    """The alert of each error of a GPU, raised by its rule."""
    texts = [xid_text(number) for number in XIDS]
    for text in texts:
        gpu = Gpu(index=3, uuid="GPU-3", name="NVIDIA H200", error=text)
        for alert in Rules().apply(Snapshot(time=1.0, host=Host(name="node1"), gpus=(gpu,))).alerts:
            yield Sentence("alert", "alert GPU ERROR:", f"{alert.summary} Next: {alert.next}")


def _loading() -> Iterator[Sentence]:
    """Each cost of loading, by the functions that write it."""
    shares = {"file": 40.0, "collate": 20.0}
    for cause in (*loading_words.COST_NAMES, "slow_worker", "cpu", "too_few_workers", "own_code", "unknown"):
        for workers in (0, 4):
            cost = LoadingCost(
                cause=cause,
                summary="",
                share_pct=83.0,
                shares=shares,
                library={"decode": "PIL", "tokenize": "tokenizers", "own_code": "pandas"}.get(cause),
                place="__getitem__ (data.py:12)",
                workers=workers,
                workers_needed=6,
                cores=12.0,
                wait_pct=40.0,
                save_seconds=0.0571,
                read_bytes_per_s=1.3e9,
            )
            if not workers and cause not in ("decode", "too_few_workers", "gil"):
                continue
            known = loading_words.Circumstances(
                slow_pid=4711,
                cpu_wait_pct=30.0,
                is_queueing=True,
                cpus=4.0,
                wanted_cpus=6.0,
                by_torch=True,
                started=2,
            )
            text = loading_words.sentence(cost, known)
            yield Sentence("alert", "cost of loading:", f"{text} Fix: {loading_words.advice_of(cost, known)}")


def _keys() -> Iterator[Sentence]:
    """The help of each key, with the key and a screen that has it."""
    for key in keys.KEYS:
        where = keys.MAIN if keys.EVERYWHERE in key.where else key.where[0]
        if key.help:
            yield Sentence("screen", f"help of key {key.shown}:", f"{key.shown} ({title_of(where)}): {key.help}")


def _reading() -> Iterator[Sentence]:
    """The legend of the help screen."""
    for name, text in (*help_screen.READING, *help_screen.MARKS):
        yield Sentence("screen", "help, reading the screen:", f"{name}: {text}")
    for name, text in help_screen.SIGNS:
        yield Sentence("screen", "help, reading the screen:", f"(sign of {name.replace('_', ' ')}) {text}")


ROW_ADVICE: Final = {
    "STALLED": "press s",
    "HUNG": "press s",
    "GPU ERROR": "end the job",
    "LONG STEPS": "save less",
    "INPUT-BOUND": "press s",
    "SLOWER": "check",
    "UNTIMED": "log every",
}
"""How the advice begins that fits the values of an alert's row, if it is not the first one."""


def _row_advice(badge: str, texts: list[str]) -> str:
    """Return the first clause of the advice that stands below a row."""
    wanted = ROW_ADVICE.get(badge, "")
    fitting = next((one for one in texts if one and one.startswith(wanted)), "")
    return f" → {fitting.partition('; ')[0]}" if fitting else ""


def _alerts() -> Iterator[_Root]:
    """The sentence, the clauses and the advice of each alert."""
    advice: dict[str, list[str]] = {}
    own_advice: dict[str, list[str]] = {}
    calls = [
        (module, node)
        for module in _modules("llmtop/rules")
        for node in module.nodes
        if isinstance(node, ast.Call)
    ]
    for module, node in calls:
        given = {part.arg: part.value for part in node.keywords}
        if called(node) == "AlertText" and "next" in given:
            scope = Scope(module).around(node)
            found = [one.text for one in variants(given["next"], scope)]
            advice.setdefault(_badge(scope), []).extend(found)
            own_advice.setdefault(module.place, []).extend(found)
    for module, node in calls:
        if called(node) in ("AlertText", "complete_clauses"):
            scope = Scope(module).around(node)
            badge = _badge(scope)
            if (
                module.place.endswith("health.py")
                and scope.function is not None
                and scope.function.name == "_alert"
            ):
                continue  # its texts are given by the functions that call it
            if called(node) == "AlertText":
                for part in node.keywords:
                    if part.arg in ("summary", "next"):
                        frame = "{}" if part.arg == "summary" else f"alert {badge}, next: {{}}"
                        yield _Root("alert", part.value, scope, frame)
            else:
                parts = [
                    one
                    for one in node.args
                    if not isinstance(one, ast.Starred) or value_of(one, scope) is not None
                ]
                row = ast.Call(func=_COMMA, args=[ast.Tuple(elts=parts)], keywords=[], lineno=node.lineno)
                below = _row_advice(badge, advice.get(badge, []))
                if module.place.endswith("slower_than_run.py"):
                    below = _row_advice("", own_advice[module.place])
                subject = "GPU 3" if module.place.endswith(("gpu.py", "unattached.py")) else "rank 5"
                if scope.function is not None and scope.function.name in _WITHOUT_RANK:
                    subject = "this machine"
                frame = f"row of the main screen: ▲ {badge} 1m 31s {subject} {{}}{below}"
                yield _Root("alert", row, scope, frame)


def _inference_advice() -> Iterator[_Root]:
    """The advice where nothing is trained."""
    module = module_of(REPOSITORY / "llmtop/rules/inference.py")
    table = module.constants["_NEXT"]
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values, strict=True):
        badge = BOTTLENECKS[key.value].badge if isinstance(key, ast.Constant) else ""
        yield _Root("alert", value, Scope(module), f"alert {badge} (inference), next: {{}}")


def _health_alerts() -> Iterator[_Root]:
    """The texts that the health rules hand to their common `_alert`."""
    module = module_of(REPOSITORY / "llmtop/rules/health.py")
    badges = {
        ast.unparse(node.args[1]): BOTTLENECKS[node.args[0].value].badge
        for node in module.nodes
        if isinstance(node, ast.Call) and called(node) == "_event_rule" and isinstance(node.args[0], ast.Constant)
    }
    for name, (sentence, row) in HEALTH_FRAMES.items():
        function = module.functions[name]
        call = next(one for one in ast.walk(function) if isinstance(one, ast.Call) and called(one) == "_alert")
        given, scope = {one.arg: one.value for one in call.keywords}, Scope(module, function)
        badge = badges[name]
        yield _Root("alert", given["what"], scope, sentence)
        below = _row_advice(badge, [one.text for one in variants(given["advice"], scope)])
        yield _Root(
            "alert", given["first"], scope, f"row of the main screen: ▲ {badge} 1m 31s rank 5 {row}{below}"
        )
        yield _Root("alert", given["advice"], scope, f"alert {badge}, next: {{}}")


def _badge(scope: Scope) -> str:
    """The badge of the rule whose alert a function writes, itself or for the function that does."""
    if scope.module.place.endswith("slower_than_run.py"):
        return BOTTLENECKS["slower"].badge  # the rule itself is in slower.py
    wanted = {scope.function.name} if scope.function is not None else set()
    while True:
        calls = {
            name
            for name, function in scope.module.functions.items()
            if wanted & {called(one) for one in ast.walk(function) if isinstance(one, ast.Call)}
        }
        if calls <= wanted:
            break
        wanted |= calls
    for node in scope.module.nodes:
        if isinstance(node, ast.Call) and "Rule[" in ast.unparse(node.func):
            given = {one.arg: one.value for one in node.keywords}
            if ast.unparse(given["describe"]) in wanted and isinstance(given["id"], ast.Constant):
                return BOTTLENECKS[given["id"].value].badge
    return ""


_WITHOUT_RANK: Final = ("_communicator_points", "_alert")
"""Functions of rules whose alert concerns no rank and no GPU."""
_COMMA = ast.Attribute(value=ast.Constant(", "), attr="join")


def _doctor() -> Iterator[_Root]:
    for module in _modules("llmtop/cli/doctor", "llmtop/capture", "llmtop/launch", "llmtop/ncu"):
        for node in module.nodes:
            if not isinstance(node, ast.Call) or called(node) not in ("Check", "Refusal", "print_text"):
                continue
            if called(node) == "print_text" and not module.place.startswith("llmtop/cli/doctor"):
                continue
            scope = Scope(module).around(node)
            given = {one.arg: one.value for one in node.keywords if one.arg}
            texts = [given["says"]] if "says" in given else node.args[:1]
            command = given.get("command", node.args[1] if len(node.args) > 1 else None)
            fix = _first(command, scope) if called(node) != "print_text" else ""
            name = _first(given["name"], scope) if "name" in given else ""
            mark = {True: "ok", False: "NO"}.get(getattr(given.get("ok"), "value", None), "-")
            begin = (
                f"{mark} {name}: " if name else _engine_frame(module, node) if called(node) == "Refusal" else ""
            )
            for text in texts:
                yield _Root("doctor", text, scope, begin + "{}" + (f" | to fix: {fix}" if fix else ""))


def _first(node: ast.AST | None, scope: Scope) -> str:
    """The usual text of an expression; empty if it is absent."""
    return variants(node, scope)[0].text if node is not None else ""


def _engine_frame(module: Module, refusal: ast.Call) -> str:
    """How doctor begins the line of the engine that refuses."""
    folder = module.place.removeprefix("llmtop/capture/").split("/")[0]
    engine = {"in_process": "torch.profiler", "py_spy": "py-spy"}.get(folder, folder)
    engine = {"jax_profiler.py": "jax.profiler", "sessions.py": "torch.profiler"}.get(
        module.place.rpartition("/")[2], engine
    )
    target = "pid 4711, not attached" if "is not attached" in ast.unparse(refusal) else "pid 4711 rank 5, attached"
    if not module.place.startswith("llmtop/capture/"):
        return ""
    return f"{target}: python train.py | NO {engine.removesuffix('.py')}: "


def _errors() -> Iterator[_Root]:
    for module in _modules("llmtop", "collectors", "tui"):
        for node in module.nodes:
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and not _is_internal(node.exc):
                for text in (*node.exc.args, *(one.value for one in node.exc.keywords)):
                    yield _Root("error", text, Scope(module).around(node))


def _is_internal(call: ast.Call) -> bool:
    """Whether no user sees it: an error for the caller in the code."""
    return called(call) in (
        "AssertionError",
        "TypeError",
        "KeyError",
        "NotImplementedError",
        "RuntimeError",
        "ValueError",
        "BlockingIOError",
        "BrokenPipeError",
        "DecodeError",
        "OSError",
        "TooMuch",
        "_ReaderGone",
        "_TooMuchError",
    )


def _help() -> Iterator[_Root]:
    for module in _modules(*HELP):
        for node in module.nodes:
            scope = Scope(module).around(node)
            if isinstance(node, ast.Call):
                names = [one.value for one in node.args if isinstance(one, ast.Constant)]
                names = [str(one) for one in names if str(one).startswith("-")]
                for one in node.keywords:
                    if one.arg in ("help", "short_help", "epilog"):
                        frame = f"{names[0].partition('/')[0]}: {{}}" if names else "{}"
                        yield _Root("help", one.value, scope, frame)
            if isinstance(node, ast.FunctionDef) and any(
                "command" in ast.unparse(one) for one in node.decorator_list
            ):
                for text in (ast.get_docstring(node) or "").split("\n\n"):
                    if text:
                        yield _Root("help", ast.Constant(text, lineno=node.lineno), scope)
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "COMMANDS":
                yield from (_Root("help", text, scope) for text in _strings(node))


def _screens() -> Iterator[_Root]:
    for module in _modules("tui"):
        if module.place in _BY_HAND:
            continue
        raised = {id(part) for node in module.nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
        for part in _strings(module.tree):
            if id(part) not in raised:
                yield _Root("screen", part, Scope(module).around(part))


def _strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr | ast.BinOp]:
    """The strings of the code, each as a whole; without docstrings, patterns and annotations."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
        return
    if isinstance(node, ast.Compare | ast.Assert | ast.arg):
        return  # held against something, not written
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def main(kinds: list[str]) -> None:
    """Print all sentences, or those of some kinds."""
    for one in sentences():
        if not kinds or one.kind in kinds:
            print(f"{one.kind:<7} {one.place:<52} {one.text}")


if __name__ == "__main__":
    main(sys.argv[1:])
