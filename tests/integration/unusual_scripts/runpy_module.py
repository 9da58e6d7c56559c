import runpy, sys, pathlib
pathlib.Path("tool").mkdir()
pathlib.Path("tool/__init__.py").touch()
pathlib.Path("tool/__main__.py").write_text("import sys; print(__name__, __package__, sys.argv[0][-11:]); sys.exit(6)\n")
sys.path.insert(0, ".")
runpy.run_module("tool", run_name="__main__", alter_sys=True)
