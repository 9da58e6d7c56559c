"""
>>> double(4)
8
>>> double("a")
'a'
"""
import doctest, sys
def double(number): return 2 * number
sys.exit(doctest.testmod().failed)
