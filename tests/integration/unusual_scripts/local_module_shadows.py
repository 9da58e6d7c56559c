import pathlib, sys
pathlib.Path("click.py").write_text("here = True\n")
sys.path_importer_cache.clear()
import click
print(hasattr(click, "here"), click.__name__)
