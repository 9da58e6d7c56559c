import os
os.remove(__file__)
def fail(): raise ValueError("without a source line")
fail()
