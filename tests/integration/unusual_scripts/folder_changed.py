import os, sys
os.mkdir("elsewhere"); os.chdir("elsewhere")
open("written.txt", "w").write("here")
print(os.path.basename(os.getcwd()), __file__, sys.argv[0], os.path.exists(__file__))
