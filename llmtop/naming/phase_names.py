"""Roles of phases and ranges by name: the only patterns on phase names in llmtop.

The names are the scripts' and the frameworks'. A name is cut into words first (`get_batch`, `trainDataLoader` and
"fetch next batch" alike), so that no word is found inside another: `database` is no data, `commit` no collective.
tests/naming/test_phase_names.py lists the names that this was written for, each once.
"""

from __future__ import annotations

import functools
import re
from typing import Final, Literal

from llmtop.naming.lazy_pattern import lazy_pattern
from llmtop.naming.own_phases import DATALOAD

Role = Literal["step", "input", "h2d", "comm", "sync", "compute", "backward", "optimizer", "other"]
"""Role of a phase. "step" is a whole step. "input" waits for or makes the next batch. "h2d" copies to the GPU.
"comm" waits for other ranks. "sync" waits for the GPU, to print or log. "compute" is the forward pass and
all else that a step computes. "other" is unknown."""

_WORD: Final = lazy_pattern(r"(?i:[hd]2[hd])(?![a-z])|[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
_JOINED: Final = {
    DATALOAD: "data load",
    "dataloading": "data loading",
    "dataloader": "data loader",
    "h2d": "to device",
    "htod": "to device",
    "todevice": "to device",
    "d2h": "to host",
    "dtoh": "to host",
    "allreduce": "all reduce",
    "allgather": "all gather",
    "alltoall": "all to all",
    "reducescatter": "reduce scatter",
    "zerograd": "zero grad",
    "nextbatch": "next batch",
    "getbatch": "get batch",
    "all2": "all to",
}
"""Words that are written as one and as two."""


def _words_like(alternatives: str) -> re.Pattern[str]:
    """Matches a name cut into words if one of the alternatives, "a | b c", stands in it as whole words."""
    joined = "|".join(re.split(r"\s+\|\s+", alternatives.strip()))
    return lazy_pattern(rf"(?:^| )(?:{joined})(?= |$)")


_BATCH: Final = "(?:batch|batches|data|input|inputs|samples?|microbatch)"
_DEVICE: Final = "(?:device|gpu|gpus|cuda)"
_GRADIENTS: Final = "(?:grads?|gradients?|params?|weights|buffers|model)"
_ROLES: Final[tuple[tuple[Role, re.Pattern[str]], ...]] = (
    # The order matters: the first that matches is taken.
    (
        "step",
        lazy_pattern(
            r"^(?:pl profile )?(?:(?:profiler|train|training|global|run training) )?(?:step|iter|iteration|batch)$"
        ),
    ),
    (
        "h2d",
        _words_like(
            rf"""to {_DEVICE} | host2? (?:to )?{_DEVICE} | (?:move|copy|transfer|put)(?: \w+)? {_DEVICE} |
            (?:move|copy|transfer|upload) (?:\w+ )?{_BATCH}"""
        ),
    ),
    (
        "comm",
        _words_like(
            rf"""comms? | communication | communicate | all reduce | all gather | all to all | reduce scatter |
            (?:data|input|output) dist | broadcast | nccl | rccl | gloo | collectives? | barrier | send recv |
            (?:sync|synchronize) {_GRADIENTS} | {_GRADIENTS} (?:sync|synchronize|reduce)"""
        ),
    ),
    (
        "input",
        _words_like(
            rf"""data | fetch | fetching | prefetch | prefetcher | prefetching | loader | collate | dequeue |
            (?:load|loading|fetch|read|reading|get|next|wait for|wait|make|prepare|sample|pull) (?:\w+ )?{_BATCH} |
            {_BATCH} (?:load|loading|fetch|fetching|wait|waiting|time|pipeline|next|read|reading|queue|prep) |
            inputs? | tokenize | tokenise | augment | preprocess"""
        ),
    ),
    (
        "sync",
        _words_like(
            "sync | synchronize | synchronise | item | to host | to cpu | wait | log | logging | metrics? | print"
        ),
    ),
    (
        "optimizer",
        _words_like("optim | optimizer | optimiser | opt | update | zero | clip | adamw? | sgd | scaler"),
    ),
    (
        "backward",
        _words_like("backwards? | backprop | back | bwd | grads? | gradients? | autograd"),
    ),
    (
        "compute",
        _words_like(
            """forward | fwd | model | loss | attention | attn | mlp | layers? | blocks? | encoder | decoder |
            embeddings? | projection | proj | linear | conv | norm | compute | step | train | training | decode |
            prefill | generate | graph"""
        ),
    ),
)
_INPUT_WORDS: Final = frozenset(
    # What is done with input, what it is, what it is for and where it comes from.
    """
    fetch fetching prefetch prefetcher prefetching load loading loader loaders read reading reader get next wait
    waiting make prepare prep sample pull collate dequeue enqueue tokenize tokenise tokenizer augment preprocess
    iterate iterator data dataset datasets batch batches input inputs samples microbatch minibatch micro mini queue
    pipeline time phase stage for the a an of from to in on new my train training val valid validation eval test
    step iter epoch host cpu worker workers async thread pool disk file files image images text texts token tokens
    video audio frame frames example examples sequence sequences
    """.split()  # noqa: SIM905  # a line of words each
)
"""A name means input if each of its words does: prefetch_weights, bindInputs and data_parallel do not."""
_LOADS_ELSE: Final = _words_like("(?:load|save) (?:state|checkpoint|ckpt|model|weights)")
_FRAMEWORKS_INPUT: Final = lazy_pattern(
    r"^enumerate\(DataLoader\)|dataloader_next|_next_batch|DataLoaderIter", re.I
)
"""PyTorch's and Lightning's own ranges around the wait for a batch."""
_COUNTS_STEPS: Final = lazy_pattern(r"^(?!.*\b(?:optim\w*|opt|micro|sub)\b).*\b(?:step|iter|iteration|batch)$")
_MAY_COUNT: Final = lazy_pattern(r"(?:step|iter|iteration|batch)\W*$", re.I)
_WARM_UP: Final = _words_like("warm ?up | warm")
_MODEL_PART: Final = _words_like(
    """layers? | blocks? | attention | attn | mlp | ffn | norm | conv | linear | proj | projection | embeddings? |
    encoder | decoder | experts? | moe | heads? | compiled fx graph"""
)
_OPTIMIZER_STEP: Final = lazy_pattern(r"^(optimizer\.step#.*|optim(izer)?([ _.-]?step)?|opt[ _.-]?step)$", re.I)
_LONGEST_NAME: Final = 200
"""Characters of a name that are matched."""
_LONGEST_NUMBER: Final = 40
"""Characters at the end of a name in which its number is searched."""
_COUNTED: Final = lazy_pattern(r"[ _#:=(\[-]*\d+[)\]]?$")


_COMPILED: Final = (
    # torch.compile names each graph by a hash of its code, and each region by numbers of a frame and of its
    # compilation: both differ from run to run.
    (lazy_pattern(r"^## Call CompiledFxGraph \w* ?##$"), "compiled graph"),
    (lazy_pattern(r"^Torch-Compiled Region: \d+/\d+(?:_\d+)?$"), "compiled region"),
)


def without_number(name: str) -> str:
    """Return a name without the count at its end, ProfilerStep#7 is ProfilerStep; of what torch.compile made,
    without the hash or the numbers."""
    if name.startswith(("## Call", "Torch-Compiled")):
        return next((short for pattern, short in _COMPILED if pattern.match(name)), name)
    # Only the end is searched: in a name of thousands of digits the pattern would start at each of them.
    head, end = name[:-_LONGEST_NUMBER], name[-_LONGEST_NUMBER:]
    return head + _COUNTED.sub("", end) or name


def role_of(name: str) -> Role:
    """Return the role of a phase.

    Args:
        name: as the script gave it; of a nested one ("forward/attention") the last part counts.
    """
    # A capture can have the same name with tens of thousands of numbers: those have one role.
    return _role_of(without_number(name.rpartition("/")[2][:_LONGEST_NAME]))


@functools.lru_cache(maxsize=8192)
def _role_of(name: str) -> Role:
    if _FRAMEWORKS_INPUT.search(name):
        return "input"
    words = _words(name)
    found = _role_of_words(words)
    if found == "input" and not all(word in _INPUT_WORDS or word.isdigit() for word in words.split()):
        found = next((role for role, pattern in _ROLES if role != "input" and pattern.search(words)), "other")
    return "other" if found in ("input", "compute") and _LOADS_ELSE.search(words) else found


def _role_of_words(words: str) -> Role:
    return next((role for role, pattern in _ROLES if pattern.search(words)), "other")


def is_numbered_step(name: str) -> bool:
    """Return True if a range counts steps, whatever else is in its name: "decode step 12", but no step of a
    warm-up."""
    base = without_number(name.rpartition("/")[2][:_LONGEST_NAME])
    if base == name or not _MAY_COUNT.search(base):
        return False
    words = _words(base)
    counts = bool(_COUNTS_STEPS.search(words)) and not _WARM_UP.search(words)
    return counts and role_of(name) in ("step", "compute")


def is_optimizer_step(name: str) -> bool:
    """Return True if a range of this name is the optimizer's step as a whole, whose end is the end of a step."""
    return bool(_OPTIMIZER_STEP.match(name))


def is_model_part(name: str) -> bool:
    """Return True if a range of this name is around a part of a model, as a layer or its attention."""
    return bool(_MODEL_PART.search(_words(name[:_LONGEST_NAME])))


def is_warm_up(name: str) -> bool:
    """Return True if a range of this name is around a warm-up, whose steps do not count."""
    return bool(_WARM_UP.search(_words(name[:_LONGEST_NAME])))


def computes(role: Role) -> bool:
    """Return True if a phase of this role is the step's own work."""
    return role in ("step", "compute", "backward", "optimizer")


def _words(name: str) -> str:
    """Return the words of a name in lower case, one space between two."""
    words = (word.lower() for word in _WORD.findall(name))
    return " ".join(_JOINED.get(word, word) for word in words)
