#: steps = 7
#: phases = prefill decode
#: tokens = 15
#: samples = 3
#: needs = transformers
#: slow = loads transformers
"""Requests to a language model, greedy and sampled, with a streamer of the script's own; nothing is trained."""

import inspect

import digest
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.streamers import BaseStreamer

digest.seed()


class Kept(BaseStreamer):
    def __init__(self):
        self.kept = []

    def put(self, value):
        self.kept.append(value.tolist())

    def end(self):
        self.kept.append("end")


class Own(GPT2LMHeadModel):
    def prepare_inputs_for_generation(self, *args, **kwargs):
        frames.append(inspect.stack()[0].function)
        return super().prepare_inputs_for_generation(*args, **kwargs)


frames = []
config = GPT2Config(
    vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=None
)
model = Own(config).eval()
prompt = torch.randint(1, 64, (3, 10))
answers = [model.generate(prompt, max_new_tokens=5, do_sample=turn % 2 == 1, pad_token_id=0) for turn in range(6)]
streamer = Kept()
answers.append(model.generate(prompt, max_new_tokens=5, streamer=streamer, pad_token_id=0))
digest.add("streamed", streamer.kept)
digest.add("answers", answers)
digest.add("frames", frames)
digest.add("signature", str(inspect.signature(model.generate)))
digest.add("prepares", str(inspect.signature(GPT2LMHeadModel.prepare_inputs_for_generation)))
digest.model(model)
digest.pickled("model", model)
digest.end()
