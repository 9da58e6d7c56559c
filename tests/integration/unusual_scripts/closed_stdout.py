import sys
sys.stdout.close()
