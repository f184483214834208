"""For the reference: the doctests of a docstring as blocks of code. An extension of griffe (see mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

import griffe

_BLOCK = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around what begins with >>> and goes on to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _BLOCK.sub(lambda block: f"```pycon\n{block[0]}\n```", obj.docstring.value)
