#: steps = 6
"""Signals that the user has for himself: a timer, a wake-up descriptor, blocked ones, USR1, a child's end."""

import os
import select
import signal
import subprocess

import digest
import torch
from torch import nn

digest.seed()
told = []
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF):
    signal.signal(number, lambda number, frame: told.append(number))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGHUP})
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for number in range(6):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if number == 2:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)  # blocked: pending to the end
        subprocess.run(["/bin/true"], check=True)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while signal.SIGALRM not in told:
            select.select([reader], [], [], 10)
digest.add("told", sorted(told))
digest.add("pending", sorted(signal.sigpending()))
digest.add("woken by", sorted(os.read(reader, 100)))
digest.model(net, optimizer)
digest.end()
