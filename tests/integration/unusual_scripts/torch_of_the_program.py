import pathlib
pathlib.Path("torch.py").write_text("answer = 42\n")
import torch
print(torch.answer, torch.__file__.endswith("torch.py"))
