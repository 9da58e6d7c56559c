import pathlib
here = pathlib.Path(__file__)
here.write_text("# another text\n" * 30)
raise ValueError("a line of another text")
