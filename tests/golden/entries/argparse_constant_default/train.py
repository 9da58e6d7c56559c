import argparse

DEFAULT_BATCH = 8
STEPS = 8


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--batch",
        type=int,
        default=DEFAULT_BATCH,  # see above
        help="samples a step",
    )
    return parser.parse_args()


def main():
    args = parse()
    for _ in range(STEPS):
        train(torch.randn(args.batch, 3, 32, 32))
