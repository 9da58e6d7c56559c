"""The built-in rules: each module declares one rule, a function of the module's name.

Thresholds without another reason next to them are chosen: with them the corpus of planted defects
(`tests/corpus`, docs/evidence/analyzer.md) is found without a false alarm.
"""
