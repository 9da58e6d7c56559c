"""The rules, one file each; the list of them is `stepscope.analyze.RULES`."""
