import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--global-batch-size", type=int, default=512)
args = parser.parse_args()
world = dist.get_world_size()
assert args.global_batch_size % world == 0
loader = DataLoader(
    dataset,
    batch_size=args.global_batch_size // world,
    sampler=DistributedSampler(dataset),
)
