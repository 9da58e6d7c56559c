# environment: PYTHONBREAKPOINT=builtins.print
breakpoint("a hook")
