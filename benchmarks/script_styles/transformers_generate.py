"""Generation by transformers: each model call is a step."""

import torch
from hand_timers import STEPS, end_step, timed
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)


class Timed(GPT2LMHeadModel):
    def __call__(self, *args, **kwargs):
        end_step()
        with timed("forward"):
            return super().__call__(*args, **kwargs)


model = Timed(config).eval()
for _ in range(3):
    prompt = torch.randint(1, 500, (2, 32))
    model.generate(prompt, max_new_tokens=STEPS // 3, do_sample=False, pad_token_id=0)
