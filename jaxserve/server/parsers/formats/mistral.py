"""[TOOL_CALLS] and a JSON array of calls, or a name and its arguments: Mistral's formats."""

from __future__ import annotations

import re
import secrets
import string

from jaxserve.server.parsers.call_reader import FoundCall, Offered, arguments_text, load_json
from jaxserve.server.parsers.json_scanner import JsonScanner
from jaxserve.server.parsers.marked_calls import (
    NO_CALL,
    ArrayReader,
    MarkedCallParser,
    Reader,
    Reading,
)
from jaxserve.server.wire.call_grammar import CallLayout


class _MistralReader:
    """Reads an array, or a name and its arguments."""

    _NAMED = re.compile(
        r"\s*(?P<name>[\w-]{1,128})\s*(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)"
    )
    _LONGEST = 256  # characters before the arguments

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._array: ArrayReader | None = None
        self._scanner, self._begin, self._at = JsonScanner(), 0, 0
        self._name = ""

    def read(self, text: str, last: bool) -> Reading | None:
        if not self._name and self._array is None:
            if text.lstrip().startswith("["):
                self._array = ArrayReader(self._offered)
            elif (named := self._NAMED.match(text)) and named["name"] in self._offered:
                self._name, self._begin, self._at = named["name"], named.end(), named.end()
            else:
                given_up = last or "{" in text or len(text) > self._LONGEST
                return NO_CALL if given_up else None
        if self._array is not None:
            return self._array.read(text, last)
        end = self._scanner.feed(text[self._at :])
        if end is None:
            self._at = len(text)
            return NO_CALL if last or self._scanner.malformed else None
        self._at += end
        arguments = arguments_text(load_json(text[self._begin : self._at]))
        if arguments is None:
            return NO_CALL
        return Reading([FoundCall(self._name, arguments)], self._at)


class MistralParser(MarkedCallParser):
    """[TOOL_CALLS] and a JSON array of calls, or, from tokenizer version 11 on, a name and its
    arguments: [TOOL_CALLS]name[ARGS]{...}."""

    markers = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    layout = CallLayout("[TOOL_CALLS][", ", ", "]")

    @staticmethod
    def new_call_id() -> str:
        # Mistral's chat templates refuse ids of any other form.
        letters = string.ascii_letters + string.digits
        return "".join(secrets.choice(letters) for _ in range(9))

    def _new_reader(self) -> Reader:
        return _MistralReader(self._offered)
