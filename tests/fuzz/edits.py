"""Edits of files as hypothesis draws them, and how many examples it takes."""

from __future__ import annotations

import os

from hypothesis import strategies as st
from mutations import KINDS, TOKENS

EXAMPLES = int(os.environ.get("STEPSCOPE_FUZZ_EXAMPLES", "30"))
EDITS = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.floats(0, 1), st.floats(0, 1), st.sampled_from(TOKENS), st.integers(0, 255)
    ),
    min_size=1,
    max_size=6,
)
