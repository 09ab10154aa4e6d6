#: steps = 8
#: compiler = loaded
#: env = KINETO_LOG_LEVEL=99
#: slow = one of many, and none of them is fast
"""cProfile, tracemalloc, faulthandler and torch.profiler, all of the user's own, around the loop."""

import cProfile
import faulthandler
import pstats
import tracemalloc

import digest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

digest.seed()
with open("stacks", "w") as file:
    faulthandler.enable(file, all_threads=False)
    faulthandler.dump_traceback_later(600, file=file)
    tracemalloc.start(2)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    ready = []
    profiled = cProfile.Profile()
    profiled.enable()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3),
        on_trace_ready=lambda p: ready.append({e.key: e.count for e in p.key_averages() if e.key[:5] == "aten:"}),
    ) as profiler:
        for _ in range(8):
            with record_function("of the user's"):
                optimizer.zero_grad()
                net(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
            profiler.step()
    profiled.disable()
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    with profile(
        activities=[ProfilerActivity.CPU], with_stack=True, with_modules=True, experimental_config=verbose
    ) as p:
        net(torch.randn(8, 4))
    events, modules = list(p.profiler.kineto_results.experimental_event_tree()), []
    for event in events:
        modules += [event.name] if event.name[:9] == "nn.Module" else []
        events += event.children
    digest.add("modules recorded", modules)
    calls = {
        key[2]: counts[0] for key, counts in pstats.Stats(profiled).stats.items() if key[0].endswith("linear.py")
    }
    digest.add("operations recorded", [sorted(counts.items()) for counts in ready])
    digest.add("calls", calls)
    digest.add("tracing memory", [tracemalloc.is_tracing(), tracemalloc.get_traceback_limit()])
    tracemalloc.stop()
    faulthandler.dump_traceback(file, all_threads=False)
    faulthandler.cancel_dump_traceback_later()
    digest.add("faulthandler", faulthandler.is_enabled())
    faulthandler.disable()
digest.model(net, optimizer)
digest.end()
