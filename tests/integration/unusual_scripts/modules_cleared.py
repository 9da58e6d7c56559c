import sys
for name in list(sys.modules):
    if name.partition(".")[0] in ("json", "zipfile", "click", "stepscope", "tempfile", "shutil"):
        del sys.modules[name]
import json
print(json.dumps([1]))
