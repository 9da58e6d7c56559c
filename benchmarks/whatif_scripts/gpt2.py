"""A GPT-2 of 9 million parameters on random tokens: `gpt2.py [BATCH] [STEPS]`."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, STEPS = (int(value) for value in (*sys.argv[1:], *(4, 10_000)[len(sys.argv) - 1 :]))
VOCABULARY, LENGTH = 4096, 64

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=LENGTH,
    n_embd=384,
    n_layer=4,
    n_head=6,
    bos_token_id=0,
    eos_token_id=0,
    loss_type="ForCausalLM",
)
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for _ in range(STEPS):
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
