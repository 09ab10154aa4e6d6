"""Beside any script: programs that know nothing of llmtop, run without it and below `llmtop run`, and compared.

What is compared
----------------
Each program in `scripts` is run as a user would start it, in two folders with the same content, once plain and
once behind ``llmtop run --``; the two runs go on at the same time. With ``#: hands = yes`` a third run has the
calls of llmtop in the script (`hands.py`) and no ``llmtop run``. Both runs must be equal in:

- the exit code (or the signal), and every byte on stdout and stderr (with the folder's own path replaced, and
  without the frames of llmtop in tracebacks on either: an error that passes through a hook cannot hide that);
- every file that the program left in its folder, byte by byte;
- every value that the program handed to `digest.add`, `digest.model`, `digest.pickled`: losses, weights,
  gradients, buffers, optimizer state, state_dict keys, pickles; tensors by dtype, shape, layout and every bit;
- what `digest.end` finds at the program's end: the state of every random generator (random, numpy, torch),
  threads as `threading.enumerate()` tells them, signal handlers, the main thread's signal mask, timers, the
  wake-up descriptor, sys.path, sys.argv, excepthook and its kin, trace and profile functions, warning filters,
  the garbage collector's settings, limits, umask, folder, environment, torch's global modes and hooks;
- descriptors: all that the plain run has are there; more than those may only be llmtop's socket, epoll and
  eventfd, and each of them is closed on exec. A forked child may also have a file that a thread of llmtop was
  reading or writing at the fork, closed on exec as well. A child that inherits everything it can
  (``close_fds=False``) has the same ones.

Not compared, since llmtop is there by design: the modules in sys.modules, the wrapped functions themselves
(`torch.autograd.backward`, the ``__call__`` in the dictionary of an outermost module's class), PYTHONPATH and
LLMTOP_RUN_... in the environment, a thread that Python does not know of, times.

Below `llmtop run` a program's stderr has one line more: that it has attached where it publishes, else at most one
that says why it does not. Of several processes one alone says it.

What a monitor says of each is compared with what the program really does. A client connects to every process that
calls `digest.end`, which holds the process there until the client has heard what it has to say, and listens until
the process hangs up. The program's header says what is right:

- ``#: steps = 24``: that the last step heard is the 24th, and that the first is the first or the second (the
  model is known from the first backward pass on). ``steps = 24..25``: either is right; the reason stands beside
  it. ``steps = none``: the process does not publish. ``steps = unknown``: it does, but nobody can tell its steps.
- ``#: phases = dataload forward backward optimizer``: the phases of the last step but one, where they matter.
- ``#: tokens = 48``, ``#: samples = 4``: of that step.
- ``#: note = words``: that the process says, in a sentence with these words, what is not in its numbers. Without
  this line it must have nothing to say.

How to add one
--------------
Write the program as its author would, without a thought for llmtop: ``scripts/NAME.py``, or
``scripts/NAME/main.py`` with whatever files it needs beside it. Keep it under a second (importing torch takes one
and a half), print no times, pids or addresses. Then::

    import digest                       # lies beside the program where it is run; imports nothing of llmtop

    digest.seed()                       # after all imports
    digest.add("losses", losses)        # numbers, strings, bytes, tensors, arrays; lists and dictionaries of them
    digest.model(net, optimizer)        # weights, buffers, gradients, keys, optimizer state
    digest.end()                        # once in each process that matters: digest.end("rank1")

and put the header first, as comments; ``steps`` is required, the rest as needed:

    #: steps = 24            #: steps[rank1] = 24       (of the process that ends with digest.end("rank1"))
    #: run = {python} -O {script} --lr 0.1              (how; without options by default)
    #: exit = 3              #: exit = -15              (0 is the default; a signal is negative)
    #: env = PYTHONPATH=:lib PYTHONHASHSEED=7           (what is in the environment besides)
    #: stdin = text of one line                         (none is the default: /dev/null)
    #: needs = gevent        (skipped where one of these modules is absent)
    #: slow = why            (run with ``-m slow`` only)
    #: hands = yes           (a run with the calls by hand; ``hands.steps = 24`` and so on are for that one alone;
                             ``hands = both`` is one below ``llmtop run`` besides, ``both.steps``; or "hands both")
    #: compiler = loaded     (the first step of an optimizer loads torch._dynamo, as for users; without this
                             line `digest.seed` leaves it out, for it takes a second of both runs)
    #: says = words          (a line on stderr that begins with "llmtop: " and has these words)
    #: line = none           (`llmtop run` does not say that it has attached, having no stream to say it on; or
                             "attached", though nothing is heard any more when a monitor comes)
    #: passing_threads = ThreadPoolExecutor-*           (threads that a library starts and ends in its own time, so
                             that two plain runs differ in them: fnmatch patterns; all others are compared)

Then ``python -m pytest tests/foreign -k NAME``. A program that does not come out equal has found a fault of
llmtop's; the program is not to be changed to suit it.
"""
