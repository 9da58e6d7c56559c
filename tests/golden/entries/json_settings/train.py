import json
from pathlib import Path

settings = json.loads(Path("settings.json").read_text())
loader = DataLoader(data, batch_size=settings["batch_size"])
