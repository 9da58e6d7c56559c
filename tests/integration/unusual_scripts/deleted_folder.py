import os, shutil
here = os.getcwd()
os.mkdir("work"); os.chdir("work"); shutil.rmtree(os.path.join(here, "work"))
try:
    os.getcwd()
except FileNotFoundError:
    print("the folder is gone")
