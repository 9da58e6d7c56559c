"""Trainer of transformers."""

import tempfile

import torch
from hand_timers import STEPS, end_step, time_calls, timed
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(0)
config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)
time_calls(torch.Tensor, "backward", "backward")
time_calls(GPT2LMHeadModel, "zero_grad", "backward")


class Timed(Trainer):
    def _clip_grad_norm(self, model):
        with timed("optimizer"):
            return super()._clip_grad_norm(model)

    def compute_loss(self, *args, **kwargs):
        with timed("forward"):
            return super().compute_loss(*args, **kwargs)

    def create_optimizer(self, *args):
        optimizer = super().create_optimizer(*args)
        time_calls(optimizer, "step", "optimizer")
        return optimizer


class Ends(TrainerCallback):
    def on_step_end(self, *_, **__):
        end_step()


data = [{"input_ids": (words := torch.randint(0, 500, (64,))), "labels": words}] * (4 * STEPS)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        logging_steps=1000,
        save_strategy="no",
        disable_tqdm=True,
    )
    Timed(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[Ends()]).train()
