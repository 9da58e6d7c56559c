"""The rules: each module declares one rule, a function of the module's name.

`stepscope.analyze.RULES` lists what it finds here; there is no other registry.
"""
