import warnings
warnings.warn("look here")
warnings.warn("once more", DeprecationWarning)
