"""The built-in rules: each module declares one rule, a function of the module's name."""
