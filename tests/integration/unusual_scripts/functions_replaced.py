import builtins
import io
import json
import os


def replaced(*arguments, **options):
    print("called", arguments)
    raise RuntimeError("replaced")


for module, names in (
    (os, ("getcwd", "getpid", "open", "stat", "replace", "unlink", "write", "close", "kill", "scandir")),
    (os.path, ("abspath", "exists", "isfile", "join", "realpath")),
    (json, ("dumps", "loads")),
    (io, ("open", "StringIO")),
    (builtins, ("open",)),
):
    for name in names:
        setattr(module, name, replaced)
