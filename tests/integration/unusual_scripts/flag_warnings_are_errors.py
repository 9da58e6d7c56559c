# flags: -W error
import warnings
print("still runs")
warnings.warn("look here")
