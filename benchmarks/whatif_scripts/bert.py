"""A BERT of 6 million parameters on random tokens: `bert.py [BATCH] [STEPS]`."""

import sys

import torch
from transformers import BertConfig, BertForMaskedLM

BATCH, STEPS = (int(value) for value in (*sys.argv[1:], *(4, 10_000)[len(sys.argv) - 1 :]))
VOCABULARY, LENGTH = 4096, 64

torch.manual_seed(0)
config = BertConfig(
    vocab_size=VOCABULARY,
    max_position_embeddings=LENGTH,
    hidden_size=256,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=1024,
)
model = BertForMaskedLM(config).train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

for _ in range(STEPS):
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    mask = torch.ones_like(tokens)
    loss = model(input_ids=tokens, attention_mask=mask, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
