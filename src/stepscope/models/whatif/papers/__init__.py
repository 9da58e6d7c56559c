"""Changes from papers of 2016 to 2020, which few training scripts of today can make.

They need what `whatif.parts` offers, and nothing depends on them.
"""
