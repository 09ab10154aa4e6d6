"""Train a small language model on lines of text."""

import os
import random
import time

import torch
from stamps import stamp
from torch import nn
from torch.utils.data import DataLoader

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]


class Vocabulary:
    def __init__(self, words):
        self.ranks = {}
        for word in words:
            for size in range(2, len(word) + 1):
                for start in range(len(word) - size + 1):
                    self.ranks.setdefault(word[start : start + size], len(self.ranks))

    def encode(self, word):
        parts = list(word)
        while len(parts) > 1:
            pairs = [parts[i] + parts[i + 1] for i in range(len(parts) - 1)]
            best = min(pairs, key=lambda pair: self.ranks.get(pair, 1 << 30))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [best]
        return [self.ranks.get(part, 0) % 1000 for part in parts]


class Collator:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __call__(self, lines):
        rows = []
        for line in lines:
            with stamp("planted"):
                tokens = [token for word in line.split() for token in self.vocabulary.encode(word)]
            rows.append(torch.tensor(tokens[:64]))
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    chance = random.Random(0)
    words = ["".join(chance.choices(SYLLABLES, k=6)) for _ in range(400)]
    lines = [" ".join(chance.choices(words, k=250)) for _ in range(500)] * 200
    loader = DataLoader(lines, batch_size=16, shuffle=True, collate_fn=Collator(Vocabulary(words[:200])))
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 1000))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    end = time.monotonic() + float(os.environ.get("PLANT_SECONDS", "40"))
    for tokens in loader:
        with stamp("step"):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
