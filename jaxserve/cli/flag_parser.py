"""FlagParser: flags from the command line, the environment and a file, in vLLM's spelling too."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from jaxserve.cli import flags, vllm_flags
from jaxserve.cli.config_file import read_settings

CONFIG = "--config"
PREFIX = "JAXSERVE_"
# Keys in the environment are read by the server, in addition to those of flags.
_NOT_FROM_ENVIRONMENT = frozenset({"--help", "--api-key"})
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# Kubernetes sets JAXSERVE_PORT=tcp://10.0.0.1:8000 where a service is named jaxserve.
_OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")
_ARGUMENT = re.compile(r"argument (?P<flag>--[\w-]+)")


class FlagParser(argparse.ArgumentParser):
    """A parser of one command's flags.

    What the command line doesn't set comes from the environment (JAXSERVE_MAX_NUM_SEQS=8 is
    --max-num-seqs 8), and what that doesn't set from the YAML file that --config names. In each of
    them, flags of `vllm serve` are translated (see vllm_flags), and _ may stand for -. An unknown
    flag is an error that names the nearest one.

    Args:
        environ: in place of the process's environment.
    """

    def __init__(self, *args: Any, environ: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        self._actions_by_flag: dict[str, argparse.Action] = {}
        self._sources: dict[str, str] = {}  # of flags that the command line doesn't set
        self._has_commands = False
        self._environ = os.environ if environ is None else environ
        # A part of a name would mean something else as soon as a flag is added.
        super().__init__(*args, **kwargs | {"allow_abbrev": False})

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        action = super().add_argument(*args, **kwargs)
        self._actions_by_flag |= dict.fromkeys(action.option_strings, action)
        return action

    def add_subparsers(self, **kwargs: Any) -> Any:
        self._has_commands = True
        return super().add_subparsers(**kwargs)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        if not self._has_commands:
            words = self._with_sources(self._translated(words))
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        found = _ARGUMENT.search(message)
        source = self._sources.get(found["flag"]) if found else None
        # Without the usage, whose lines would hide the message.
        self.exit(2, f"{self.prog}: error: {message}{f' (from {source})' if source else ''}\n")

    def _with_sources(self, words: list[str]) -> list[str]:
        """The words of all sources; a flag that is set twice counts from the first of command line,
        environment and file."""
        before: list[str] = []
        known, environment = self._destinations(words), self._from_environment()
        before += self._unless_set(environment, known)
        known |= self._destinations(before)
        file = next((value for flag, value in _pairs([*before, *words]) if flag == CONFIG), None)
        if file is not None:
            before = [*self._unless_set(self._from_file(file), known), *before]
        return [*before, *words]

    def _unless_set(self, named: Mapping[str, list[str]], known: Iterable[str]) -> list[str]:
        """Words by their source's name of them, without those for what is known already."""
        kept: list[str] = []
        for name, words in named.items():
            new = [w for w in words if self._actions_by_flag[w.partition("=")[0]].dest not in known]
            kept += new
            self._sources |= {word.partition("=")[0]: name for word in new}
        return kept

    def _destinations(self, words: list[str]) -> set[str]:
        named = (flag for flag, _ in _pairs(words))
        return {self._actions_by_flag[f].dest for f in named if f in self._actions_by_flag}

    def _from_environment(self) -> dict[str, list[str]]:
        names = {PREFIX + f[2:].replace("-", "_").upper(): f for f in self._actions_by_flag}
        words: dict[str, list[str]] = {}
        for name, value in self._environ.items():
            if not name.startswith(PREFIX) or _OF_KUBERNETES.match(value):
                continue
            flag = names.get(name)
            if flag is None:
                near = difflib.get_close_matches(name, names, 1, 0.9)
                if near and name not in vllm_flags.NOT_FLAGS:
                    print(f"jaxserve: {name} isn't read; is it {near[0]}?", file=sys.stderr)
            elif flag not in _NOT_FROM_ENVIRONMENT:
                words[name] = self._words(flag, value, f"the variable {name}")
        return words

    def _from_file(self, file: str) -> dict[str, list[str]]:
        words = {}
        for name, value in read_settings(file).items():
            flag = f"--{name.replace('_', '-')}"
            if flag == CONFIG:
                self.error(f"{file} names another config file: have all settings in one")
            if flag in self._actions_by_flag:
                words[f"{name} in {file}"] = self._words(flag, value, f"{name} in {file}")
            elif name.replace("-", "_") not in flags.HELP:  # of another command
                words[f"{name} in {file}"] = self._translated(_spelled(flag, value))
        return words

    def _words(self, flag: str, value: Any, where: str) -> list[str]:
        """The words that set a flag to a value of the environment or of a file."""
        action = self._actions_by_flag[flag]
        if value is None:
            return []
        if action.nargs == 0:
            on = value if isinstance(value, bool) else _boolean(str(value))
            if on is None:
                self.error(f"{where} must be true or false; it was {value!r}")
            if isinstance(action, argparse.BooleanOptionalAction):
                name = action.option_strings[0]
                return [name if on != flag.startswith("--no-") else f"--no-{name[2:]}"]
            return [flag] if on else []
        several = isinstance(action.nargs, str) or type(action).__name__ == "_AppendAction"
        if several and isinstance(value, str):
            value = [one.strip() for one in value.split(",")]
        return _spelled(flag, value if isinstance(value, list) == several else str(value))

    def _translated(self, words: list[str]) -> list[str]:
        """The words with vLLM's flags replaced by ours."""
        translated: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                return [*translated, word, *rest]
            if not word.startswith("-") or not word[1:2].strip() or re.match(r"-[\d.]", word):
                translated.append(word)
                continue
            name, equals, value = word.partition("=")
            flag = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name
            known = None if flag in self._actions_by_flag else vllm_flags.find(flag)
            if known is not None and not self._has(known):
                if known.takes_value and not equals and rest and not rest[0].startswith("-"):
                    value = rest.pop(0)
                self._leave_out(known, flag, value)
            elif known is not None and not known.takes_value:
                assert known.becomes is not None
                negated = f"--no-{known.becomes[2:]}"
                translated.append(negated if flag.startswith("--no-") else known.becomes)
            elif known is not None or flag in self._actions_by_flag:
                flag = known.becomes if known and known.becomes else flag
                given = [value] if equals else self._take_values(flag, rest)
                translated += self._with_values(flag, given)
            else:
                self.error(self._unknown(flag))
        return translated

    def _has(self, known: vllm_flags.VllmFlag) -> bool:
        return known.becomes is not None and known.becomes in self._actions_by_flag

    def _take_values(self, flag: str, rest: list[str]) -> list[str]:
        """Takes the values of a flag from the words that follow it."""
        nargs = self._actions_by_flag[flag].nargs
        most = 0 if nargs == 0 else 1 if nargs is None else len(rest)
        taken: list[str] = []
        while len(taken) < most and rest and not (rest[0].startswith("-") and rest[0][1:2].strip()):
            taken.append(rest.pop(0))
        return taken

    def _with_values(self, flag: str, given: list[str]) -> list[str]:
        if not given:
            return [flag]
        if self._actions_by_flag[flag].nargs is None:
            return [f"{flag}={vllm_flags.our_value(flag, given[0])}"]
        return [f"{flag}={one}" for value in given for one in vllm_flags.values(value)]

    def _leave_out(self, known: vllm_flags.VllmFlag, flag: str, value: str) -> None:
        if known.becomes is not None:  # of another command
            return
        if known.refused and value not in known.neutral:
            self.error(f"jaxserve doesn't have vLLM's {flag}: {known.note}")
        if known.note and value not in known.neutral:
            print(f"jaxserve: {flag} has no effect: {known.note}", file=sys.stderr)

    def _unknown(self, flag: str) -> str:
        candidates = [*self._actions_by_flag, *vllm_flags.NAMES]
        near = difflib.get_close_matches(flag, candidates, 1, 0.6)
        hint = f"is it {near[0]}? " if near else ""
        return f"there is no flag {flag}: {hint}{self.prog} --help lists all"


def _pairs(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """The flags among words, each with its value, if that follows."""
    pairs: list[tuple[str, str | None]] = []
    for i, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            following = words[i + 1] if i + 1 < len(words) else None
            pairs.append((flag, value if equals else following))
    return pairs


def _spelled(flag: str, value: Any) -> list[str]:
    """A flag with a value of a file as words."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [f"{flag}={one}" for one in (value if isinstance(value, list) else [value])]


def _boolean(text: str) -> bool | None:
    return True if text.lower() in _YES else False if text.lower() in _NO else None
