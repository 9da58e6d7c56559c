import os, tempfile
os.mkdir("own"); tempfile.tempdir = os.path.abspath("own")
with tempfile.NamedTemporaryFile() as file: print(os.listdir("own") == [os.path.basename(file.name)])
print(os.listdir("own"), sorted(os.listdir(".")), [name for name in os.environ if "STEPSCOPE" in name])
