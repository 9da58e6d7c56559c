# needs: coverage
import coverage, pathlib
pathlib.Path("measured.py").write_text("def f(x):\n    if x:\n        return 1\n    return 2\nf(1)\n")
measure = coverage.Coverage(data_file=None, config_file=False, include=["measured.py"])
measure.start()
import measured
measure.stop()
print(measure.analysis2("measured.py")[1:4])
