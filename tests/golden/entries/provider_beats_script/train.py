import argparse

from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)


def stepscope_model_provider(): ...


def stepscope_input_provider(batch_size=24): return batch_size


def stepscope_iteration_provider(model): ...


if __name__ == "__main__":
    args = parser.parse_args()
    loader = DataLoader(data, batch_size=args.batch_size)
