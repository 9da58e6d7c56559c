# environment: HOME=/proc XDG_CONFIG_HOME=/proc XDG_DATA_HOME=/proc
import os
print(os.path.expanduser("~/x"))
