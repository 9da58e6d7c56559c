"""Measures training steps at one batch size, in a process of their own; light, like all of `record`.

The parent (`stepscope.models.batch_size`) asks over stdin and reads what was measured from a JSON file.
"""
