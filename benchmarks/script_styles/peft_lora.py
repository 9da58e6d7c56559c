"""LoRA by peft: adapters in a frozen GPT-2."""

import torch
from hand_timers import STEPS, end_step, timed
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)
lora = LoraConfig(r=8, target_modules=["c_attn"], task_type="CAUSAL_LM")
model = get_peft_model(GPT2LMHeadModel(config), lora)
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
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
