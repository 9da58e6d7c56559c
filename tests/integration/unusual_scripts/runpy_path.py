import runpy, pathlib
pathlib.Path("inner.py").write_text("import sys; print(__name__, sys.argv[0])\nvalue = 4\n")
print(runpy.run_path("inner.py", run_name="__main__")["value"])
