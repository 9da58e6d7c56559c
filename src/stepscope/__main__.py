"""`python -m stepscope`: the same as `stepscope`."""

from stepscope.faces.terminal import main

if __name__ == "__main__":
    main()
