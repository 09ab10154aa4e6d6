"""A training that waits for its data, for a known reason: `python plant.py KIND [WORKERS] [FOLDER]`."""

import io
import multiprocessing
import os
import random
import sys
import time
import urllib.request

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

SIDE = 768
shared = multiprocessing.Lock()


class Images(Dataset):
    """Photographs that are made small."""

    def __init__(self):
        self.encoded = []
        for seed in range(4):
            noise = Image.effect_noise((SIDE, SIDE), 40 + seed)
            kept = io.BytesIO()
            noise.convert("RGB").save(kept, "JPEG")
            self.encoded.append(kept.getvalue())

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.encoded[index % 4]))
        return torch.frombuffer(bytearray(image.resize((224, 224), Image.LANCZOS).tobytes()), dtype=torch.uint8)


class Words(Dataset):
    """Texts that are cut into tokens, one by one."""

    def __init__(self):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        self.texts = [
            " ".join(random.choices(["loss", "gradient", "the", "of", "tensor", "λ"], k=2000)) for _ in range(64)
        ]
        self.cut = Tokenizer(models.BPE())
        self.cut.pre_tokenizer = pre_tokenizers.Whitespace()
        self.cut.train_from_iterator(self.texts, trainers.BpeTrainer(vocab_size=300, show_progress=False))

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        ids = []
        for text in range(4):
            ids += self.cut.encode(self.texts[(index + text) % 64] + str(index)).ids[:256]
        return torch.tensor(ids)


class Files(Dataset):
    """Records of a file that lies on a disk, and not in memory."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "records.bin")
        self.size = os.path.getsize(self.path)

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        with open(self.path, "rb", buffering=0) as file:
            at = random.randrange(self.size >> 16) << 16
            os.posix_fadvise(file.fileno(), at, 1 << 16, os.POSIX_FADV_DONTNEED)
            file.seek(at)
            return torch.frombuffer(bytearray(file.read(1 << 16)), dtype=torch.uint8)


class Locked(Dataset):
    """What only one worker at a time may look at."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        with shared:
            end = time.perf_counter() + 0.01
            while time.perf_counter() < end:
                pass
        return torch.zeros(16)


class Fetched(Dataset):
    """Records that another machine serves, slowly."""

    def __init__(self, address):
        self.address = address

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        with urllib.request.urlopen(f"{self.address}/{index}", timeout=240) as answer:
            return torch.frombuffer(bytearray(answer.read()), dtype=torch.uint8)


class Lists(Dataset):
    """Samples as lists of Python, which somebody must put together."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return [index % 97] * 64


def pad(samples):
    """Put samples together in Python."""
    rows = []
    for sample in samples:
        row = []
        for number in sample:
            for more in range(400):
                row += [number + more]
        rows.append(row[:64])
    return torch.tensor(rows)


class Texts(Dataset):
    """Texts that somebody else makes numbers of."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        return f"gradient {index % 97} of the loss " * 20


def merge(symbols, pair):
    """Join a pair of symbols wherever it stands."""
    joined, place = [], 0
    while place < len(symbols):
        both = symbols[place : place + 2]
        joined.append("".join(both) if both == pair else both[0])
        place += 2 if both == pair else 1
    return joined


def batch_of_merges(samples):
    """Make numbers of texts in code that no name reveals."""
    rows = []
    for sample in samples:
        symbols = list(sample)
        for pair in (["r", "a"], ["s", "s"], ["t", "h"], ["l", "o"]):
            symbols = merge(symbols, pair)
        rows.append([len(symbol) for symbol in symbols][:64])
    return torch.tensor(rows)


def tokenize(text):
    """Cut a text into tokens, one letter after the other."""
    return [ord(letter) for letter in text for _ in range(20)][:64]


def batch_of_tokens(samples):
    """Make numbers of texts by a tokenizer."""
    return torch.tensor([tokenize(sample) for sample in samples])


COLLATES = {"collate": pad, "merges": batch_of_merges, "python_tokens": batch_of_tokens}


class Uneven(Dataset):
    """One worker of several gets what is dear."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        mine = torch.utils.data.get_worker_info()
        end = time.perf_counter() + (0.1 if mine is not None and mine.id == 3 else 0.0)
        while time.perf_counter() < end:
            sum(range(50))
        return torch.zeros(16)


class Own(Dataset):
    """Code of the script's own."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        total = 0
        for number in range(60000):
            total = (total * 31 + number) % 1000003
        return torch.full((16,), total)


class Stream(IterableDataset):
    """Images one after the other, as a tar of them comes."""

    def __init__(self):
        self.images = Images()

    def __iter__(self):
        for index in range(1 << 20):
            yield self.images[index]


def batches():
    """A plain generator, without any loader."""
    images = Images()
    for index in range(1 << 20):
        yield torch.stack([images[index + sample] for sample in range(2)])


def source(kind, workers, folder):
    """The batches."""
    if kind == "generator":
        return batches()
    made = {
        "decode": Images, "tokenize": Words, "lock": Locked, "collate": Lists, "slow_worker": Uneven, "own": Own,
        "stream": Stream, "merges": Texts, "python_tokens": Texts,
    }  # fmt: skip
    if kind == "disk":
        data = Files(folder)
    elif kind == "network":
        data = Fetched(folder)
    else:
        data = made[kind]()
    size = 64 if kind in COLLATES else 1 if kind == "slow_worker" else 4
    return DataLoader(data, batch_size=size, num_workers=workers, collate_fn=COLLATES.get(kind))


def main():
    """Train, a step a batch."""
    kind, workers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
    model = torch.nn.Linear(16, 16)
    torch.set_num_threads(1)
    for step, _ in enumerate(source(kind, workers, sys.argv[3] if len(sys.argv) > 3 else "")):
        model.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        with torch.no_grad():  # an optimizer of torch would load the compiler
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        if step == 2:
            print("go", flush=True)


if __name__ == "__main__":
    main()
