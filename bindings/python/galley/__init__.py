"""Galley: serving for DeepSeek-V4 and V4.1 models.

This package holds the codec (`galley.recipe`): request bodies of three public protocols become token
ids, generated tokens become reply bytes.
"""

from galley import recipe

__all__ = ["recipe"]
