"""Where references stand in a shell script, so that each can become a variable that the shell never reads as code.

A scanner that follows quotes, substitutions, here-documents and the words of commands, in what bash and a plain sh have
in common. It need not understand a script, only know for each reference whether `"$VAR"` or `${VAR}` is one word there.
Where it cannot tell, or where the shell would read the value as code after all (`eval`, arithmetic, `sh -c`), it
refuses. A script without references is never looked at, so nobody else is disturbed.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from agentos.dag.language.references import Reference, format_path, positioned_parts
from agentos.dag.language.shell_words import COMPUTED, EXPANSION, HereDocument, Words

_IN_SINGLE_QUOTES = "stands in single quotes, where the shell expands nothing: use double quotes"
_IN_BACKQUOTES = "stands in backquotes: use $(…)"
_IN_EXPANSION = "stands inside ${…}: assign it to a variable first"
_IN_QUOTED_DOCUMENT = "stands in a quoted here-document, where the shell expands nothing: write its << without quotes"
_IN_CODE = "would be code for another shell: give it as an argument instead"
_REDIRECTIONS = ("<<<", "<<-", "<<", "<&", "<>", "<", ">>", ">&", ">|", ">")

Unit = str | Reference


class ScriptError(ValueError):
    """A script that holds references cannot be followed."""


class Slot(msgspec.Struct, frozen=True):
    """A reference in a script, and how its variable is written there."""

    reference: Reference
    quoted: bool
    """Stands inside double quotes or a here-document."""
    spreads: bool
    """May become several words: it is an argument, or an element of an array."""


class Script(msgspec.Struct, frozen=True):
    """A script in pieces: plain text, and slots for its references."""

    pieces: tuple[str | Slot, ...]
    refused: tuple[str, ...]
    """Why references cannot stand where they do."""


class _Quotes:
    """Double quotes, or the text of a here-document (which nothing closes but its end)."""

    def __init__(self, close: str) -> None:
        self.close = close


class _Opaque:
    """What no reference may stand in: `${…}` and arithmetic."""

    def __init__(self, close: str, why: str, *, quoted: bool) -> None:
        self.close, self.why, self.quoted = close, why, quoted
        self.depth = 0


def read_script(text: str) -> Script:
    """The script in pieces. ScriptError where it cannot be followed, ExpressionError where a reference is no good."""
    return _Scanner(text).script()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.units: list[Unit] = []
        for _, part in positioned_parts(text):
            self.units += part if isinstance(part, str) else [part]
        self.at = 0
        self.end = len(self.units)
        self.slots: dict[int, Slot] = {}
        self.refused: list[tuple[Reference, str]] = []
        self.frames: list[Words | _Quotes | _Opaque] = [Words()]

    def script(self) -> Script:
        self._scan()
        outermost = self._words()
        outermost.end_word()
        if outermost.test is not None:
            raise self._error("]] is missing")
        outermost.end_command()
        if len(self.frames) > 1:
            raise self._error(f"{self.frames[-1].close} is missing")
        if outermost.documents:
            raise self._error(f"the here-document {outermost.documents[0].delimiter} has no end")
        self.refused += outermost.refused
        pieces: list[str | Slot] = []
        for index, unit in enumerate(self.units):
            piece = self.slots[index] if isinstance(unit, Reference) else unit
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] += piece
            else:
                pieces.append(piece)
        place = {id(unit): index for index, unit in enumerate(self.units) if isinstance(unit, Reference)}
        refused = sorted(self.refused, key=lambda found: place[id(found[0])])
        whys = dict.fromkeys(f"`{format_path(reference.path)}` {why}" for reference, why in refused)
        return Script(tuple(pieces), tuple(whys))

    def _scan(self) -> None:
        while self.at < self.end:
            frame = self.frames[-1]
            match frame:
                case Words():
                    self._in_words(frame)
                case _Quotes():
                    self._in_quotes(frame)
                case _Opaque():
                    self._in_opaque(frame)
                case _:
                    assert_never(frame)

    # --- moving ---------------------------------------------------------------------------------------------------

    def _next(self, ahead: int = 0) -> Unit:
        return self.units[self.at + ahead] if self.at + ahead < self.end else ""

    def _follows(self, text: str) -> bool:
        return all(self._next(index) == character for index, character in enumerate(text))

    def _error(self, why: str) -> ScriptError:
        line = 1 + self.units[: self.at].count("\n")
        return ScriptError(f"line {line}: {why}, so it cannot be told where its references stand")

    def _words(self) -> Words:
        """The commands that this place belongs to."""
        return next(frame for frame in reversed(self.frames) if isinstance(frame, Words))

    def _open(self, frame: Words | _Quotes | _Opaque, length: int) -> None:
        self.frames.append(frame)
        self.at += length

    def _take(self, reference: Reference, why: str = "") -> None:
        words = self._words()
        quoted = not isinstance(self.frames[-1], Words)
        self.slots[self.at] = Slot(reference, quoted, words.spreads and not quoted)
        words.take(reference, why)
        self.at += 1

    # --- commands -------------------------------------------------------------------------------------------------

    def _in_words(self, words: Words) -> None:
        unit = self._next()
        if isinstance(unit, Reference):
            self._take(unit)
        elif unit in " \t\n;&|()<>":
            self._between_words(words, unit)
        elif unit == "#" and words.word is None:
            while (unit := self._next()) not in ("", "\n"):
                if isinstance(unit, Reference):
                    self.slots[self.at] = Slot(unit, True, False)
                self.at += 1
        elif unit == "'":
            self._skip(words, 1, "'", _IN_SINGLE_QUOTES)
        elif unit == '"':
            self._open_quotes(words, 1)
        else:
            self._character(unit)

    def _between_words(self, words: Words, unit: str) -> None:
        if words.test is not None:
            words.sign_in_test(unit)
            # `]]` may just have ended the test: then the unit is looked at again as what it is outside.
            self.at += words.test is not None
        elif words.opens_subscript:
            raise self._error("an index with blanks or signs in it is beyond what can be followed")
        elif unit in " \t":
            words.end_word()
            self.at += 1
        elif unit == "\n":
            self._newline(words)
        elif unit in "<>":
            self._redirection(words)
        elif unit == "(":
            self._parenthesis(words)
        elif unit == ")":
            self._close(words)
        else:
            self._operator(words, unit)

    def _character(self, unit: str) -> None:
        """What means the same inside and outside of double quotes."""
        words = self._words()
        if unit == "\\":
            self.at += 1
            following = self._next()
            if isinstance(following, Reference):
                self._take(following, "stands behind a backslash: for a plain ${{ write $${{")
                return
            if following != "\n":
                words.bare = False
                words.add(following)
            self.at += 1
        elif unit == "`":
            self._skip(words, 1, "`", _IN_BACKQUOTES)
        elif unit == "$":
            self._dollar(words)
        else:
            words.add(unit)
            self.at += 1

    def _dollar(self, words: Words) -> None:
        quoted = isinstance(self.frames[-1], _Quotes)
        if self._follows("$'") and not quoted:
            self._skip(words, 2, "'", _IN_SINGLE_QUOTES)
            return
        if self._follows('$"') and not quoted:
            self._open_quotes(words, 2)
            return
        words.add(EXPANSION)
        if self._follows("$(("):
            self._open(_Opaque("))", COMPUTED, quoted=quoted), 3)
        elif self._follows("$("):
            # Where nothing that a substitution gives may stand, no reference may stand in it either.
            frame = self.frames[-1]
            refuses = frame.why if isinstance(frame, _Opaque) and frame.close != "}" else words.refusal
            self._open(Words(")", refuses=refuses), 2)
        elif self._follows("${"):
            self._open(_Opaque("}", _IN_EXPANSION, quoted=quoted), 2)
        elif self._follows("$["):
            self._open(_Opaque("]", COMPUTED, quoted=quoted), 2)
        else:
            self.at += 1
            if self._next() in tuple("@*#?-!$"):
                self.at += 1
                return
            while isinstance(unit := self._next(), str) and (unit.isalnum() or unit == "_"):
                self.at += 1

    def _open_quotes(self, words: Words, length: int) -> None:
        words.bare = False
        words.add("")
        self._open(_Quotes('"'), length)

    def _skip(self, words: Words, opening: int, close: str, why: str) -> None:
        """Past quotes that no reference may stand in."""
        words.bare = words.bare and close == "`"
        words.add(EXPANSION if close == "`" else "")
        self.at += opening
        while (unit := self._next()) != close:
            if isinstance(unit, Reference):
                self._take(unit, why)
                continue
            if unit == "":
                raise self._error(f"{close} is missing")
            if unit == "\\" and (close == "`" or opening == 2):
                if close == "'" and self._next(1) == "'":
                    raise self._error("\\' inside $'…' ends it for a plain sh and does not for bash")
                if isinstance(self._next(1), str):
                    self.at += 1
            words.add(unit if close == "'" else "")
            self.at += 1
        self.at += 1

    # --- between words --------------------------------------------------------------------------------------------

    def _operator(self, words: Words, unit: str) -> None:
        if words.elements or (words.position == "pattern" and unit == "|"):
            words.end_word()
            self.at += 1
        elif self._follows(";;") or self._follows(";&"):
            words.end_command()
            if not words.cases:
                raise self._error("there is a ;; outside of case")
            words.position = "pattern"
            self.at += 3 if self._follows(";;&") else 2
        else:
            if self._follows("&>"):
                raise self._error("&> is one thing to bash and two to a plain sh (write > FILE 2>&1)")
            words.end_command(piped=unit == "|" and not self._follows("||"))
            self.at += 2 if self._next(1) == unit else 1

    def _parenthesis(self, words: Words) -> None:
        if words.assigns:
            self._open(Words(")", elements=True, refuses=words.declares), 1)
        elif words.position == "pattern" and words.word is None:
            self.at += 1
        elif words.elements or words.position == "pattern" or (words.position == "arguments" and words.word):
            self._open(Words(")", elements=True, pattern=True, refuses=words.refusal), 1)  # such as @(a|b)
        elif self._ends_function_name(words):
            return
        elif words.word is not None:
            raise self._error(f"{words.word}( is no command")
        elif self._follows("((") and (words.position == "name" or words.name == "for"):
            self._open(_Opaque("))", COMPUTED, quoted=False), 2)
        elif words.position == "name":
            self._open(Words(")"), 1)
        else:
            raise self._error("there is a ( that no command begins with")

    def _ends_function_name(self, words: Words) -> bool:
        ahead = 1
        while self._next(ahead) in (" ", "\t"):
            ahead += 1
        named = words.word is not None or words.count == 1
        if not named or self._next(ahead) != ")":
            return False
        words.begin()
        self.at += ahead + 1
        return True

    def _close(self, words: Words) -> None:
        if words.position == "pattern":
            words.end_word()  # esac, where the last pattern has its own end
        if words.position == "pattern":
            words.begin()
        elif words.close == ")":
            words.end_command()
            if words.documents:
                raise self._error("a here-document does not end inside its parentheses")
            self.frames.pop()
            self._words().absorb(words)
        else:
            raise self._error("there is a ) that nothing opened")
        self.at += 1

    def _redirection(self, words: Words) -> None:
        if self._next(1) == "(":
            words.add("<(")
            self._open(Words(")", refuses=words.refusal), 2)
            return
        if words.word is not None and words.bare and (words.word.isdecimal() or words.word.startswith("{")):
            words.word = None  # the number of what is redirected, no word of its own
        words.end_word()
        sign = next(sign for sign in _REDIRECTIONS if self._follows(sign))
        self.at += len(sign)
        if sign in ("<<", "<<-"):
            self._announce(words, tabs=sign == "<<-")
        elif sign in ("<&", ">&") and self._target_refers():
            raise self._error(f"what stands behind {sign} can be computed, and must be plain")
        else:
            words.target = True

    def _target_refers(self) -> bool:
        ahead = 0
        while self._next(ahead) in (" ", "\t"):
            ahead += 1
        while isinstance(unit := self._next(ahead), str) and unit not in ("", " ", "\t", "\n", ";", "&", "|", "<", ">"):
            ahead += 1
        return isinstance(unit, Reference)

    # --- here-documents -------------------------------------------------------------------------------------------

    def _announce(self, words: Words, *, tabs: bool) -> None:
        while self._next() in (" ", "\t"):
            self.at += 1
        delimiter, quoted = "", False
        while (unit := self._next()) not in ("", " ", "\t", "\n", ";", "&", "|", "(", ")", "<", ">"):
            if isinstance(unit, Reference) or unit in "$`":
                raise self._error("the end of a here-document must be plain text")
            if unit in "'\"":
                quoted = True
                self.at += 1
                while (inner := self._next()) != unit:
                    if not isinstance(inner, str) or inner in ("", "\n", "\\"):
                        raise self._error("the end of a here-document must be plain text")
                    delimiter += inner
                    self.at += 1
            elif unit == "\\":
                quoted = True
                self.at += 1
                delimiter += str(self._next())
            else:
                delimiter += unit
            self.at += 1
        if not delimiter:
            raise self._error("a here-document has no name")
        words.announce(HereDocument(delimiter, tabs=tabs, quoted=quoted))

    def _newline(self, words: Words) -> None:
        if words.elements or words.position in ("pattern", "subject", "in"):
            words.end_word()
        else:
            words.end_command()
        self.at += 1
        documents, words.documents = words.documents, []
        for document in documents:
            self._document(words, document)

    def _document(self, words: Words, document: HereDocument) -> None:
        """Past the text of a here-document, up to and with the line that ends it."""
        start, stop, after = self.at, self.at, self.at
        while True:
            if after >= self.end:
                raise self._error(f"the here-document {document.delimiter} has no end")
            stop = after
            line: list[Unit] = []
            while after < self.end and self.units[after] != "\n":
                line.append(self.units[after])
                after += 1
            after += 1
            text = "".join(unit if isinstance(unit, str) else "\0" for unit in line)
            if (text.lstrip("\t") if document.tabs else text) == document.delimiter:
                break
            if not document.quoted and text.endswith("\\"):
                raise self._error("a line of a here-document ends with a backslash")
        self._document_text(words, document, start, stop)
        self.at = min(after, self.end)

    def _document_text(self, words: Words, document: HereDocument, start: int, stop: int) -> None:
        refusal = _IN_QUOTED_DOCUMENT if document.quoted else _IN_CODE if document.code else ""
        if refusal:
            for self.at in range(start, stop):
                if isinstance(unit := self.units[self.at], Reference):
                    self.slots[self.at] = Slot(unit, True, False)
                    self.refused.append((unit, refusal))
            return
        # The text is followed by itself: what is opened in it must be closed in it, and no command has words in it.
        text = Words()
        text.position = "subject"
        outside, self.frames = self.frames, [text, _Quotes("")]
        end, self.end, self.at = self.end, stop, start
        self._scan()
        if len(self.frames) != 2:
            raise self._error(f"the here-document {document.delimiter} leaves something open")
        self.frames, self.end = outside, end
        self.refused += text.refused

    # --- quotes and the like --------------------------------------------------------------------------------------

    def _in_quotes(self, quotes: _Quotes) -> None:
        unit = self._next()
        if isinstance(unit, Reference):
            self._take(unit)
        elif unit == quotes.close:
            self.frames.pop()
            self.at += 1
        else:
            self._character(unit)

    def _in_opaque(self, opaque: _Opaque) -> None:
        unit = self._next()
        arithmetic = opaque.close != "}"
        if isinstance(unit, Reference):
            self._take(unit, opaque.why)
        elif self._follows(opaque.close) and not opaque.depth:
            self.frames.pop()
            self.at += len(opaque.close)
        elif unit in "'\"" and opaque.quoted and not arithmetic:
            self._skip_plain_quotes(unit, opaque.why)
        elif unit in "\n`" or (unit in "'\"\\" and arithmetic):
            raise self._error(f"{unit!r} inside {'$((…))' if arithmetic else '${…}'} is beyond what can be followed")
        elif unit == "'":
            self._skip(self._words(), 1, "'", opaque.why)
        elif unit == '"':
            self._open_quotes(self._words(), 1)
        elif unit in "\\$":
            self._character(unit)
        else:
            opaque.depth += (unit == "(") - (unit == ")") if arithmetic else 0
            self.at += 1

    def _skip_plain_quotes(self, quote: str, why: str) -> None:
        """Past quotes inside `"${…}"`. Shells differ on what they mean there, but not while their text is plain."""
        self.at += 1
        while (unit := self._next()) != quote:
            if isinstance(unit, Reference):
                self._take(unit, why)
            elif unit == "" or unit in "{}'\"\\$`\n":
                raise self._error("quotes inside ${…} inside quotes are beyond what can be followed")
            else:
                self.at += 1
        self.at += 1
