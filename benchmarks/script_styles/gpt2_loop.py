"""A transformer of transformers (GPT-2) in a loop of one's own."""

import torch
from hand_timers import STEPS, end_step, timed
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    batch = torch.randint(0, 500, (4, 64))
    with timed("forward"):
        loss = model(input_ids=batch, labels=batch).loss
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
