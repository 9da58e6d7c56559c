"""Supervised fine-tuning by trl."""

import tempfile

import torch
from datasets import Dataset
from hand_timers import STEPS, end_step, time_calls, timed
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = {f"w{number}": number for number in range(500)}
plain = Tokenizer(models.WordLevel(words, unk_token="w0"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="w1", pad_token="w2")
config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=1)
time_calls(torch.Tensor, "backward", "backward")
time_calls(GPT2LMHeadModel, "zero_grad", "backward")


class Timed(SFTTrainer):
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


data = Dataset.from_list([{"input_ids": list(range(3, 67))}] * (4 * STEPS))
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        logging_steps=1000,
        save_strategy="no",
        disable_tqdm=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    Timed(
        GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[Ends()],
    ).train()
