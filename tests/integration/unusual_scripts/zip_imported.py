import sys, zipfile
with zipfile.ZipFile("library.zip", "w") as archive:
    archive.writestr(zipfile.ZipInfo("packed/__init__.py"), "def fail(): raise KeyError('in a zip')\n")
sys.path.insert(0, "library.zip")
import packed
print(packed.__loader__.archive)
packed.fail()
