"""Train a small regression on features that a service returns; each worker asks from eight threads."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset

SERVER = """
import os, socket, threading, time
def answer(connection):
    while connection.recv(8):
        time.sleep(0.008)
        connection.sendall(os.urandom(256))
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""


class Client:
    def __init__(self, port):
        self.lock = threading.Lock()
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=30)

    def features(self, index):
        with self.lock, stamp("request"):
            self.connection.sendall(index.to_bytes(8, "little"))
            return self.connection.recv(256, socket.MSG_WAITALL)


class Features(Dataset):
    def __init__(self, port):
        self.port = port
        self.client = None

    def __len__(self):
        return 100_000

    def __getitems__(self, indices):
        if self.client is None:
            self.client = Client(self.port)
            self.pool = ThreadPoolExecutor(8)
        with stamp("planted"):
            answers = list(self.pool.map(self.client.features, indices))
        return [torch.from_numpy(np.frombuffer(answer, np.uint8) / np.float32(255)) for answer in answers]


def train(port):
    loader = DataLoader(Features(port), batch_size=32, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for values in loader:
        with stamp("step"):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(values), values).backward()
            optimizer.step()
        if time.monotonic() > end:
            break


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            train(int(server.stdout.readline()))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
