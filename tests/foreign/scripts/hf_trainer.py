#: steps = 6
#: compiler = loaded
#: phases = dataload forward backward optimizer
#: tokens = 64
#: needs = transformers
#: slow = loads transformers
#: hands = hands both
"""A tiny GPT-2 with Hugging Face's Trainer: accumulation, evaluation, checkpoints.

By hand it has llmtop's callback.
"""

import os

import digest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed
from transformers.utils.logging import disable_progress_bar

callbacks = []
if os.environ.get("FOREIGN_HANDS"):
    from llmtop.integrations.transformers import LlmtopCallback

    callbacks.append(LlmtopCallback())
digest.seed()
set_seed(0)
disable_progress_bar()


class Texts(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        ids = (torch.arange(16) * (index + 1)) % 40
        return {"input_ids": ids, "labels": ids}


net = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=8, n_layer=1, n_head=1))
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=6,
    eval_strategy="steps",
    eval_steps=3,
    logging_steps=2,
    save_steps=3,
    save_only_model=True,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    seed=0,
)
trainer = Trainer(net, arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=callbacks)
trainer.remove_callback(PrinterCallback)  # it prints times
trainer.train()
timed = ("runtime", "per_second", "total_flos")
history = [{k: v for k, v in row.items() if not k.endswith(timed)} for row in trainer.state.log_history]
digest.add("history", history)
digest.model(net)
for folder, _, files in os.walk("out"):
    for name in files:
        if not name.endswith((".safetensors", "config.json")):
            os.unlink(os.path.join(folder, name))  # with times in it
digest.end()
