import hydra
from torch.utils.data import DataLoader


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    loader = DataLoader(dataset(cfg), batch_size=cfg.data.batch_size, num_workers=cfg.data.workers)


if __name__ == "__main__":
    main()
