"""Train a small GPT-2 with transformers.Trainer on random tokens. Downloads nothing."""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class RandomTokens(Dataset):
    def __init__(self, size: int, length: int, vocabulary: int):
        self.tokens = torch.randint(vocabulary, (size, length))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    set_seed(0)
    config = GPT2Config(
        vocab_size=500, n_positions=32, n_layer=2, n_embd=64, n_head=2, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch,
                gradient_accumulation_steps=args.accumulate,
                logging_steps=5,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
            ),
            train_dataset=RandomTokens(256, 32, config.vocab_size),
        )
        trainer.train()


if __name__ == "__main__":
    main()
