# input: 1 + 1\nraise ValueError("typed")\nimport sys; sys.exit(5)\n
import code
code.interact(banner="hello", exitmsg="", local={})
