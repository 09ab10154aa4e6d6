"""Train a small classifier on rows of a database."""

import os
import sqlite3
import time
from pathlib import Path

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader, Dataset

PATIENTS = 60_000
QUERY = "SELECT age, weight, pressure, pulse, ill FROM visits WHERE patient = ? ORDER BY day"


class Visits(Dataset):
    def __init__(self, path):
        self.path = path
        self.database = None

    def __len__(self):
        return PATIENTS

    def __getitem__(self, index):
        if self.database is None:
            self.database = sqlite3.connect(self.path)
        with stamp("planted"):
            rows = self.database.execute(QUERY, (f"patient-{index:06d}",)).fetchall()
        return torch.tensor([row[:4] for row in rows]).flatten(), rows[0][4]


def write_database(path):
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE visits (patient TEXT, day INT, age, weight, pressure, pulse, ill INT)")
        rows = (
            (f"patient-{n // 4:06d}", n % 4, n % 90 / 90, n % 70 / 70, n % 50 / 50, n % 60 / 60, n // 4 % 2)
            for n in range(4 * PATIENTS)
        )
        database.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    write_database(Path("visits.sqlite"))
    loader = DataLoader(Visits("visits.sqlite"), batch_size=16, shuffle=True, num_workers=2, prefetch_factor=2)
    model = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    while time.monotonic() < end:
        for values, labels in loader:
            with stamp("step"):
                loss = nn.functional.cross_entropy(model(values), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if time.monotonic() > end:
                break


if __name__ == "__main__":
    main()
