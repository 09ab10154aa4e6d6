"""A Hugging Face Trainer on GPT-2 with 124 M parameters, batch 16 x 512, random tokens."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    """Random tokens, made anew for each sample."""

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 50_257, (512,))
        return {"input_ids": tokens, "labels": tokens}


arguments = TrainingArguments(
    "/tmp/truth-hf",
    per_device_train_batch_size=16,
    max_steps=1_000_000,
    bf16=True,
    logging_steps=20,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
Trainer(GPT2LMHeadModel(GPT2Config()), arguments, train_dataset=Tokens()).train()
