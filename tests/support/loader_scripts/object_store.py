"""Train a small regression on objects of a store that answers over HTTP."""

import os
import subprocess
import sys
import time
import urllib.request

import numpy as np
import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset

STORE = """
import http.server, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.03)
        self.send_response(200)
        self.send_header("Content-Length", "1024")
        self.end_headers()
        self.wfile.write(os.urandom(1024))
    def log_message(self, *arguments): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Objects(Dataset):
    def __init__(self, port):
        self.address = f"http://127.0.0.1:{port}"

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        with stamp("planted"), urllib.request.urlopen(f"{self.address}/{index}", timeout=30) as answer:
            content = answer.read()
        values = np.frombuffer(content, np.uint8).astype(np.float32) / 255
        return torch.from_numpy(values), values[:1].copy()


def train(port):
    loader = DataLoader(Objects(port), batch_size=4, num_workers=1)
    model = nn.Sequential(nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for values, target in loader:
        with stamp("step"):
            loss = nn.functional.mse_loss(model(values), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if time.monotonic() > end:
            break


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", STORE], stdout=subprocess.PIPE, text=True) as store:
        try:
            train(int(store.stdout.readline()))
        finally:
            store.kill()


if __name__ == "__main__":
    main()
