"""The words of a shell command: which of them is its name, and what the shell would do with a value in their place."""

from __future__ import annotations

import re
from typing import Literal

from agentos.dag.language.references import Reference

HOLE = "\x00"
"""Stands for a reference inside a word; no script may hold NUL."""
EXPANSION = "\x01"
"""Stands for what the shell puts in place of `$x`, `$(…)` and the like."""
COMPUTED = "would be computed as arithmetic, which can run commands: assign it to a variable and check it first"

_OPENERS = frozenset(("if", "then", "elif", "else", "while", "until", "do", "{", "!"))
_PREFIXES = {
    "exec": "a",
    "command": "",
    "builtin": "",
    "nohup": "",
    "env": "uC",
    "sudo": "ughpCrtUTDR",
    "doas": "uC",
    "nice": "n",
    "time": "fo",
    "setsid": "",
    "stdbuf": "ioe",
    "xargs": "nIPLdaEs",
}
"""Commands that run another, whose name comes behind their options; and those options that take a word of their own."""
_DECLARES = frozenset(("export", "local", "declare", "typeset", "readonly"))
_EVALUATES = frozenset(
    ("eval", "source", ".", "trap", "alias", "let", "unset", "read", "mapfile", "readarray", "getopts")
)
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "su"))
_COMPUTES = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[.*\])?\+?=", re.DOTALL)
_SUBSCRIPT = re.compile(r"[A-Za-z_]\w*\[[^\]]*\Z")
_CODE_OPTION = re.compile(r"-[a-z]*c")


class HereDocument:
    """A here-document that was announced and begins on the next line."""

    def __init__(self, delimiter: str, *, tabs: bool, quoted: bool) -> None:
        self.delimiter, self.tabs, self.quoted = delimiter, tabs, quoted
        self.code = False
        """It is given to a shell, as a script."""


class Words:
    """A list of commands up to what closes it (or the elements of an array), word by word."""

    def __init__(self, close: str = "", *, elements: bool = False, pattern: bool = False, refuses: str = "") -> None:
        self.close, self.elements, self.pattern, self.refuses = close, elements, pattern, refuses
        self.cases = 0
        self.documents: list[HereDocument] = []
        self.refused: list[tuple[Reference, str]] = []
        self.taken: list[Reference] = []
        """Every reference in it, however deep."""
        self._piped: list[Reference] = []
        self._piped_documents: list[HereDocument] = []
        self.begin()

    def begin(self) -> None:
        """A simple command starts."""
        self.position: Literal["name", "arguments", "function", "subject", "in", "pattern"]
        self.position = "arguments" if self.elements else "name"
        self.word: str | None = None
        self.bare = True
        """Nothing in the word is quoted."""
        self.name, self.last = "", ""
        self.count = 0
        self.test: list[Reference] | None = None
        """References inside `[[ … ]]`; None outside of it."""
        self.target = False
        """The word says where a redirection goes."""
        self._options = self._shell = self._computes = self._vague = False
        self._prefix = ""
        self._owed: Literal["", "surely", "maybe"] = ""
        """The next word belongs to an option of the prefix."""
        self._plain: Words | None = None
        """What a plain sh, which knows no `[[`, makes of the words behind `||` and the like inside of it."""

    def add(self, text: str) -> None:
        self.word = (self.word or "") + text
        if self._plain is not None:
            self._plain.add(text)

    def sign_in_test(self, sign: str) -> None:
        """An operator inside `[[ … ]]`: only a sign to bash, to a plain sh the end of a command or a redirection."""
        self.end_word()
        if self.test is None:
            return
        if sign in "&|;\n" and self._plain is None:
            self._plain = Words()
        elif self._plain is not None and sign in "<>":
            self._plain.target = True
        elif self._plain is not None and sign not in " \t":
            self._plain.end_command()

    def announce(self, document: HereDocument) -> None:
        self.documents.append(document)
        self._piped_documents.append(document)

    # --- a reference ----------------------------------------------------------------------------------------------

    def take(self, reference: Reference, why: str = "") -> None:
        """A reference is part of the word; `why` it may not be where it is, if that is known."""
        why = why or self.refusal
        if why:
            self.refused.append((reference, why))
        self._note([reference])
        if self._plain is not None:
            self._plain.take(reference, why)
        self.word = (self.word or "") + HOLE

    def absorb(self, inner: Words) -> None:
        """A substitution inside the word is over: what comes out of it stands where it stood."""
        self.refused += inner.refused
        self._note(inner.taken)

    def _note(self, references: list[Reference]) -> None:
        if self.test is not None:
            self.test += references
        self._piped += references
        self.taken += references

    @property
    def spreads(self) -> bool:
        """Several words may stand here for one: behind an assignment or `>` the second would become a command."""
        plain = self.position == "arguments" and not self.target and self.test is None
        return plain and not self.pattern and self.name not in _DECLARES

    @property
    def assigns(self) -> bool:
        return self.bare and _ASSIGNMENT.fullmatch(self.word or "") is not None

    @property
    def declares(self) -> str:
        """What would evaluate the elements of an array that is assigned here; empty where nothing does."""
        return f"would be evaluated by {self.name}" if self.name in _DECLARES and self._options else self.refuses

    @property
    def refusal(self) -> str:
        """Why a value may not be part of the word; empty where it may."""
        word = self.word or ""
        if self.refuses:
            return self.refuses
        if self.target or self.position in ("subject", "in", "pattern"):
            return ""
        if _SUBSCRIPT.match(word) or (self.elements and word.startswith("[") and "]" not in word):
            return COMPUTED
        if self.position != "arguments":
            option = self._prefix and (word.startswith("-") or self._owed == "surely")
            aside = self.position == "name" and not self._vague and (option or _ASSIGNMENT.match(word))
            return "" if aside else "would be the name of a command: write the name itself, or give run as a list"
        if self.name in _DECLARES and (self._options or not _ASSIGNMENT.match(word)):
            return f"would be evaluated by {self.name}: assign it in a line of its own, NAME=${{{{ … }}}}"
        if self.name in _EVALUATES:
            return f"would be evaluated by {self.name}"
        if self.last == "-v" and self.name in ("printf", "test", "["):
            return "would be the name of a variable"
        if _is_shell(self.name) and self.count == 1 and not _CODE_OPTION.fullmatch(self.last):
            return "would be the script that another shell runs: write its name itself"
        if self._shell and _CODE_OPTION.fullmatch(self.last):
            return f"would be code for another shell: {self.last} 'echo \"$1\"' sh ${{{{ … }}}} passes it as a value"
        return ""

    # --- the end of a word ----------------------------------------------------------------------------------------

    @property
    def opens_subscript(self) -> bool:
        """In the middle of `name[`, where bash reads blanks as part of the word and a plain sh does not."""
        return self.position == "name" and _SUBSCRIPT.match(self.word or "") is not None

    def end_word(self) -> None:
        word, bare = self.word, self.bare
        if word is None:
            return
        self.word, self.bare = None, True
        if self._plain is not None:
            self._plain.bare = bare
            self._plain.end_word()
        if self.target:
            self.target = False
        elif self.elements:
            self.last = word
        elif self.position == "pattern":
            if bare and word == "esac":
                self._leave_case()
        elif self.position == "subject":
            self.position = "in"
        elif self.position == "in":
            self.position = "pattern"
        elif self.position == "function":
            self.begin()
        elif self.position == "name":
            self._name(word, bare)
        else:
            self._argument(word, bare)

    def _name(self, word: str, bare: bool) -> None:
        plain = word.replace(EXPANSION, "")
        if bare and word in _OPENERS:
            return
        if bare and word == "coproc":
            self.refuses = "stands behind coproc, which is beyond what can be followed"
            return
        if bare and word == "esac" and self.cases:
            self._leave_case()
        elif bare and word == "case":
            self.cases += 1
            self.position = "subject"
        elif bare and word == "function":
            self.position = "function"
        elif bare and not plain:
            self._vague = True  # an expansion may turn out to be nothing: then the next word is the name
        elif self._on_the_way(word):
            return
        elif plain in _PREFIXES:
            self._prefix = plain
        else:
            self.name = self.last = plain
            self.count = 1
            self.position = "arguments"
            self._shell = _is_shell(plain)
            # Called as `\declare` or `command declare` it splits its assignments into words like any command.
            self._options = not bare or bool(self._prefix)
            self.test = [] if bare and word == "[[" else None

    def _on_the_way(self, word: str) -> bool:
        """Whether the word only stands before the name: an assignment, or an option of a prefix and what it takes."""
        if self._vague:
            return False
        if self._prefix and word.startswith("-"):
            self._owed = ""
            if self._prefix == "command" and word in ("-v", "-V"):  # it only looks the next word up
                self.name, self.position = "command", "arguments"
            elif word.startswith("--"):
                self._owed = "" if "=" in word else "maybe"
            elif word[-1] in _PREFIXES[self._prefix]:
                self._owed = "surely" if len(word) == 2 else "maybe"  # -nu takes a word, -uroot has taken it
            return True
        owed, self._owed = self._owed, ""
        return bool(owed or _ASSIGNMENT.match(word) or (self._prefix and "=" in word))

    def _argument(self, word: str, bare: bool) -> None:
        if bare and not word.replace(EXPANSION, ""):
            return  # it may turn out to be nothing: then the next word stands in its place
        if self.test is not None and bare and word == "]]":
            if self._computes:
                self.refused += [(reference, COMPUTED) for reference in self.test]
            if self._plain is not None:
                self.refused += self._plain.refused
            self.test = self._plain = None
        elif self.test is not None and bare and word in _COMPUTES:
            self._computes = True
        elif bare and word == "do" and self.name in ("for", "select"):
            self.begin()
            return
        self._options = self._options or word.startswith(("-", "+"))
        self._shell = self._shell or _is_shell(word)
        if not word.startswith("-"):
            self.count += 1
        self.last = word

    def _leave_case(self) -> None:
        self.cases -= 1
        self.name, self.count, self.position = "esac", 1, "arguments"

    def end_command(self, *, piped: bool = False) -> None:
        """The command is over; `piped` where its output goes to the next one."""
        self.end_word()
        if _is_shell(self.name) and self.count == 1:
            # A shell without a script of its own: what it reads is code.
            why = "would be code for another shell: give it as an argument instead"
            self.refused += [(reference, why) for reference in self._piped]
            for document in self._piped_documents:
                document.code = True
        if not piped:
            self._piped, self._piped_documents = [], []
        self.begin()


def _is_shell(word: str) -> bool:
    return word.rpartition("/")[2] in _SHELLS
