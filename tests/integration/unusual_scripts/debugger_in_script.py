# input: p 1 + 1\nnext\np value\ncontinue\n
import pdb
pdb.Pdb(nosigint=True, readrc=False).set_trace()
value = 5
print("after")
