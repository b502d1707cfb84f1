"""References in shell tasks: where they may stand, what they become, and that no value ever becomes code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.dag.language.shell_references import arguments_for, check_script, script_for
from agentos.exceptions import EvaluationError

X = "${{ params.x }}"
V = "$AGENTOS_REF_1"
Q = '"$AGENTOS_REF_1"'
B = "${AGENTOS_REF_1}"


def planned(script: str) -> str:
    return script_for(script, {"params": {"x": "text"}})[0]


def written(script: str) -> str:
    """The script with `@` for the reference as it is typed."""
    return script.replace("@@", X)


# --- what references become ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "becomes"),
    [
        ("ruff check @@", f"ruff check {Q}"),
        ('echo "a @@ b"', f'echo "a {B} b"'),
        ('echo $"a @@"', f'echo $"a {B}"'),
        ("echo a@@b@@", f"echo a{Q}b{Q}"),
        ("A=@@", f"A={Q}"),
        ("A=@@ B+=@@ cmd @@", f"A={Q} B+={Q} cmd {Q}"),
        ("a[0]=@@", f"a[0]={Q}"),
        ("export A=@@", f"export A={Q}"),
        ("cmd > @@ 2>&1 < @@", f"cmd > {Q} 2>&1 < {Q}"),
        ("cmd 2>@@ {fd}>@@", f"cmd 2>{Q} {{fd}}>{Q}"),
        ("cat <<< @@", f"cat <<< {Q}"),
        ("a=(@@ b)", f"a=({Q} b)"),
        ("echo $(cat @@)", f"echo $(cat {Q})"),
        ('echo "$(cat "@@")"', f'echo "$(cat "{B}")"'),
        ("echo $x ${#x} ${x%.txt} $((1+(2))) $[3] $? @@", f"echo $x ${{#x}} ${{x%.txt}} $((1+(2))) $[3] $? {Q}"),
        ('echo "${x%\'.txt\'}" "${x:-"none"}" @@', f'echo "${{x%\'.txt\'}}" "${{x:-"none"}}" {Q}'),
        ("echo ${x:-'a}'} ${x:-\"a}\"} ${x:-\\}} @@", f"echo ${{x:-'a}}'}} ${{x:-\"a}}\"}} ${{x:-\\}}}} {Q}"),
        ("echo 'it' \\' \"'\" $'\\t' # don't\necho @@", f"echo 'it' \\' \"'\" $'\\t' # don't\necho {Q}"),
        ("echo a#b @@ # @@", f"echo a#b {Q} # {B}"),
        ("echo `date \\` x` @@", f"echo `date \\` x` {Q}"),
        ("for f in @@; do echo @@; done", f"for f in {Q}; do echo {Q}; done"),
        ("for ((i=0; i<3; i++)); do echo @@; done", f"for ((i=0; i<3; i++)); do echo {Q}; done"),
        ("if [ @@ = a ]; then b @@; else c @@; fi", f"if [ {Q} = a ]; then b {Q}; else c {Q}; fi"),
        ("[[ @@ == a && b < c ]] && d @@", f"[[ {Q} == a && b < c ]] && d {Q}"),
        ("[[ a == @@ || b == @@ ]]; echo @@", f"[[ a == {Q} || b == {Q} ]]; echo {Q}"),
        ("x=$([[ a == b ]]); c @@", f"x=$([[ a == b ]]); c {Q}"),
        ("case @@ in (a|b) c @@;; @@) d;; *) e;& f) ;;& esac; g @@", None),
        ("x=$(case a in a) b;; esac); c @@", f"x=$(case a in a) b;; esac); c {Q}"),
        ("case a in b) c @@\nesac\nd @@", f"case a in b) c {Q}\nesac\nd {Q}"),
        ("case a\nin\nb) c @@;;\nesac", f"case a\nin\nb) c {Q};;\nesac"),
        ("f() { echo @@; }\ng () ( echo @@ )\nfunction h { echo @@; }\nf @@", None),
        ("(cd a && b @@) > @@ & c @@ | d @@", f"(cd a && b {Q}) > {Q} & c {Q} | d {Q}"),
        ("diff <(sort @@) >(cat @@)", f"diff <(sort {Q}) >(cat {Q})"),
        ("ls !(@@|b) x@(c)", f"ls !({Q}|b) x@(c)"),
        ("a=(x@(@@) y)", f"a=(x@({Q}) y)"),
        ("cat <<EOF\n@@ \"q\" 'q' $(echo @@) `date` ${x} \\$ \nEOF\necho @@", None),
        ("cat <<-EOF\n\t@@\n\tEOF\n", f"cat <<-EOF\n\t{B}\n\tEOF\n"),
        ("cat <<A <<B\n@@\nA\n@@\nB", f"cat <<A <<B\n{B}\nA\n{B}\nB"),
        ("cat <<EOF\na[ $(show @@)\nEOF", f"cat <<EOF\na[ $(show {Q})\nEOF"),
        ("echo ${x:-$(cat @@)}", f"echo ${{x:-$(cat {Q})}}"),
        ("x=$(cat <<EOF\n@@\nEOF\n)", f"x=$(cat <<EOF\n{B}\nEOF\n)"),
        ("cat <<'EOF'\nplain\nEOF\necho @@", f"cat <<'EOF'\nplain\nEOF\necho {Q}"),
        ("bash -c 'echo \"$1\"' sh @@", f"bash -c 'echo \"$1\"' sh {Q}"),
        ("echo @@ | bash script.sh", f"echo {Q} | bash script.sh"),
        ("sudo -u @@ --shell=@@ apt install @@", f"sudo -u {Q} --shell={Q} apt install {Q}"),
        ("env A=@@ nice -n 5 make @@", f"env A={Q} nice -n 5 make {Q}"),
        ("sudo --user root apt @@", f"sudo --user root apt {Q}"),
        ("command -v @@", f"command -v {Q}"),
        ("$PYTHON run.py @@", f"$PYTHON run.py {Q}"),
        ("$HOME/bin/tool @@", f"$HOME/bin/tool {Q}"),
        ("while read -r line; do a @@; done < @@", f"while read -r line; do a {Q}; done < {Q}"),
        ("! grep @@ file && \\\n  echo @@", f"! grep {Q} file && \\\n  echo {Q}"),
        ("printf '%s' @@ -v", f"printf '%s' {Q} -v"),
        ("select x in @@; do a; done", f"select x in {Q}; do a; done"),
        ("echo $${{ }} @@", f"echo ${{{{ }}}} {Q}"),
        ("a=(\n  # one\n  @@\n)", f"a=(\n  # one\n  {Q}\n)"),
    ],
)
def test_a_reference_becomes_one_quoted_variable(script: str, becomes: str | None) -> None:
    script = written(script)
    assert list(check_script(script)) == []
    if becomes is not None:
        assert planned(script) == becomes


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo '@@'", "stands in single quotes"),
        ("echo $'@@'", "stands in single quotes"),
        ("cat <<'EOF'\n@@\nEOF", "stands in a quoted here-document"),
        ('cat <<"EOF"\n@@\nEOF', "stands in a quoted here-document"),
        ("cat <<\\EOF\n@@\nEOF", "stands in a quoted here-document"),
        ("@@ a", "would be the name of a command"),
        ("./@@.sh", "would be the name of a command"),
        ('"@@" a', "would be the name of a command"),
        ("A=1 @@", "would be the name of a command"),
        ("a[0]=1 @@", "would be the name of a command"),
        ("a; @@", "would be the name of a command"),
        ("a | @@", "would be the name of a command"),
        ("a && @@ || b", "would be the name of a command"),
        ("(@@)", "would be the name of a command"),
        ("x=$(@@)", "would be the name of a command"),
        ("if @@; then a; fi", "would be the name of a command"),
        ("! @@", "would be the name of a command"),
        ("{ @@; }", "would be the name of a command"),
        ("for x do @@; done", "would be the name of a command"),
        ("case a in b) @@;; esac", "would be the name of a command"),
        ("function @@ { a; }", "would be the name of a command"),
        ("f() @@", "would be the name of a command"),
        ("sudo @@", "would be the name of a command"),
        ("sudo -u root @@", "would be the name of a command"),
        ("sudo -nu root @@", "would be the name of a command"),
        ("sudo -uroot @@", "would be the name of a command"),
        ("sudo -n @@", "would be the name of a command"),
        ('env -S "@@"', "would be the name of a command"),
        ("sudo --user root @@", "would be the name of a command"),
        ("env -u A B=c @@", "would be the name of a command"),
        ("time -p @@", "would be the name of a command"),
        ("exec @@", "would be the name of a command"),
        ("$EMPTY @@", "would be the name of a command"),
        ("$@ @@", "would be the name of a command"),
        ("`true` @@", "would be the name of a command"),
        ("$EMPTY A=@@", "would be the name of a command"),
        ("> out @@", "would be the name of a command"),
        ("[[ a || @@ == b ]]", "would be the name of a command"),
        ("[[ a || > f @@ ]]", "would be the name of a command"),
        ("coproc a { @@; }", "stands behind coproc"),
        ("echo \\@@", "stands behind a backslash"),
        ('echo "\\@@"', "stands behind a backslash"),
        ("echo `cat @@`", "stands in backquotes"),
        ("echo `cat \\@@`", "stands in backquotes"),
        ("echo ${a:-@@}", "stands inside ${…}"),
        ("echo \"${a:-'@@'}\"", "stands inside ${…}"),
        ("echo $((@@ + 1))", "would be computed as arithmetic"),
        ("echo $[@@]", "would be computed as arithmetic"),
        ("((@@))", "would be computed as arithmetic"),
        ("for ((i=0; i<@@; i++)); do a; done", "would be computed as arithmetic"),
        ("a[@@]=1", "would be computed as arithmetic"),
        ("a=([@@]=1)", "would be computed as arithmetic"),
        ("[[ @@ -eq 1 ]]", "would be computed as arithmetic"),
        ("[[ -v @@ ]]", "would be computed as arithmetic"),
        ("eval @@", "would be evaluated by eval"),
        ('eval "$(printf %s @@)"', "would be evaluated by eval"),
        ("eval @(a|@@)", "would be evaluated by eval"),
        ("source <(echo @@)", "would be evaluated by source"),
        ("echo $(( $(cat @@) ))", "would be computed as arithmetic"),
        ("[[ $(cat @@) -eq 1 ]]", "would be computed as arithmetic"),
        ("$(which @@) --version", "would be the name of a command"),
        ("echo $(cat @@) | sh", "would be code for another shell"),
        ('bash -c "$(cat @@)"', "would be code for another shell"),
        ("cat <<EOF\n$(eval @@)\nEOF", "would be evaluated by eval"),
        ('eval "echo @@"', "would be evaluated by eval"),
        (". @@", "would be evaluated by ."),
        ("read @@", "would be evaluated by read"),
        ('trap "rm @@" EXIT', "would be evaluated by trap"),
        ("export @@", "would be evaluated by export"),
        ("declare -i n=@@", "would be evaluated by declare"),
        ("\\declare n=$a@@", "would be evaluated by declare"),
        ("command declare n=$a@@", "would be evaluated by declare"),
        ("declare -a a=(@@)", "would be evaluated by declare"),
        ("printf -v @@ x", "would be the name of a variable"),
        ("test -v @@", "would be the name of a variable"),
        ("test -v $@ @@", "would be the name of a variable"),
        ("bash $1 @@", "would be the script that another shell runs"),
        ('bash -c "echo @@"', "would be code for another shell"),
        ('find . -exec /bin/sh -c "x @@" \\;', "would be code for another shell"),
        ("bash @@", "would be the script that another shell runs"),
        ("bash <<EOF\n@@\nEOF", "would be code for another shell"),
        ("cat <<EOF | sh\n@@\nEOF", "would be code for another shell"),
        ("echo @@ | /bin/sh", "would be code for another shell"),
    ],
)
def test_a_reference_that_could_become_code_is_refused(script: str, why: str) -> None:
    (problem,) = check_script(written(script))
    assert problem.startswith("`params.x` ")
    assert why in problem


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'a @@", "' is missing"),
        ('echo "a @@', '" is missing'),
        ("echo $(a @@", ") is missing"),
        ("echo ${a @@", "} is missing"),
        ("echo $((1 @@", ")) is missing"),
        ("echo `a @@", "` is missing"),
        ("[[ a == @@", "]] is missing"),
        ("a) @@", "a ) that nothing opened"),
        ("a;; @@", ";; outside of case"),
        ("a @@ (b)", "a ( that no command begins with"),
        ("!(a) @@", "!( is no command"),
        ("cat <<EOF\n@@", "the here-document EOF has no end"),
        ("cat @@ <<EOF", "the here-document EOF has no end"),
        ("cat << ; @@", "a here-document has no name"),
        ("cat <<$A\nx\n$A\n@@", "must be plain text"),
        ("cat <<@@\nx", "must be plain text"),
        ("cat <<'A\n' @@", "must be plain text"),
        ("cat <<EOF\na\\\nEOF\n@@\nEOF", "ends with a backslash"),
        ("cat <<EOF\n$(a\nEOF\necho @@", "leaves something open"),
        ("x=$(cat <<EOF)\n@@\nEOF", "does not end inside its parentheses"),
        ("echo $'a\\'b' @@", "ends it for a plain sh"),
        ("a &> b @@", "write > FILE 2>&1"),
        ("a >& @@", "must be plain"),
        ("a <&x@@", "must be plain"),
        ("a[ 1 ]=2 @@", "an index with blanks"),
        ("echo $((1\n)) @@", "inside $((…)) is beyond"),
        ("echo $(('a')) @@", "inside $((…)) is beyond"),
        ("echo ${a:-`b`} @@", "inside ${…} is beyond"),
        ("echo \"${a:-'}'}\" @@", "quotes inside ${…} inside quotes"),
    ],
)
def test_a_script_that_cannot_be_followed_is_refused_with_its_line(script: str, why: str) -> None:
    (problem,) = check_script(written(script))
    assert problem.startswith("line ")
    assert why in problem


def test_every_refused_reference_is_told() -> None:
    script = "echo '${{ params.a }}'\n${{ params.b }}\neval ${{ params.c }} $(${{ params.d }})"
    assert [problem.split(" ")[0] for problem in check_script(script)] == [
        "`params.a`",
        "`params.b`",
        "`params.c`",
        "`params.d`",
    ]


def test_an_unreadable_reference_is_told_elsewhere() -> None:
    assert list(check_script("echo ${{ oops")) == []


def test_a_script_without_references_is_never_looked_at() -> None:
    assert script_for("echo 'never closed", {}) == ("echo 'never closed", {})


# --- values -------------------------------------------------------------------------------------------------------


def test_each_reference_has_one_variable() -> None:
    script = "a ${{ params.x }} ${{ params.y || 'z' }} ${{params.x}}"
    assert script_for(script, {"params": {"x": "text"}}) == (
        'a "$AGENTOS_REF_1" "$AGENTOS_REF_2" "$AGENTOS_REF_1"',
        {"AGENTOS_REF_1": "text", "AGENTOS_REF_2": "z"},
    )


def test_values_travel_as_text() -> None:
    scope = {"params": {"x": {"a": [1, None]}, "y": True, "z": "it's"}}
    _, variables = script_for('e "${{ params.x }}" ${{ params.y }} ${{ params.z }}', scope)
    assert list(variables.values()) == ['{"a":[1,null]}', "true", "it's"]


def test_a_list_gives_several_words_where_several_may_stand() -> None:
    script = written('e @@ "@@" p@@s; a=(@@); b=@@ > @@')
    text, variables = script_for(script, {"params": {"x": ["x", 2]}})
    two = '"$AGENTOS_REF_1_1" "$AGENTOS_REF_1_2"'
    assert text == f'e {two} "{B}" p{two}s; a=({two}); b={Q} > {Q}'
    assert variables == {"AGENTOS_REF_1_1": "x", "AGENTOS_REF_1_2": "2", "AGENTOS_REF_1": '["x",2]'}


def test_an_empty_list_gives_no_word() -> None:
    assert script_for("rm -f ${{ params.l }}", {"params": {"l": []}}) == ("rm -f ", {})


def test_a_list_of_words_takes_values_as_they_are() -> None:
    scope = {"params": {"files": ["a b", "$(c)", 3], "x": {"k": 1}}}
    run = ("wc", "${{ params.files }}", "--x=${{ params.x }}", "n: ${{ params.files }}", "plain")
    assert arguments_for(run, scope) == ["wc", "a b", "$(c)", "3", '--x={"k":1}', 'n: ["a b","$(c)",3]', "plain"]


@pytest.mark.parametrize("value", ["a\0b", ["a\0b"]])
def test_nul_can_be_given_to_no_command(value: Any) -> None:
    with pytest.raises(EvaluationError, match="NUL"):
        script_for("e ${{ params.x }}", {"params": {"x": value}})
    with pytest.raises(EvaluationError, match="NUL"):
        arguments_for(("e", "${{ params.x }}"), {"params": {"x": value}})


@pytest.mark.parametrize("script", ["echo '${{ params.x }}'", "echo '${{ params.x }}", "echo ${{ oops"])
def test_a_script_that_was_never_checked_fails_the_task(script: str) -> None:
    with pytest.raises(EvaluationError, match="run: "):
        script_for(script, {"params": {"x": 1}})


# --- for real -----------------------------------------------------------------------------------------------------

SHELLS = [shell for shell in ("bash", "dash") if shutil.which(shell)]
SCRIPTS = [
    "show @@ end",
    'show "@@" end',
    'show a"@@"b@@ end',
    'A=@@; show "$A"',
    'export A=@@; show "$A"',
    'show "$(printf %s @@)"',
    'show $(printf %s "@@" | wc -c)',
    'for f in @@; do show "$f"; done',
    "case @@ in x) show x;; *) show @@;; esac",
    "f() { show @@; }; f @@",
    "if [ @@ = x ]; then show 1; else show @@; fi",
    'show "${A:-none}" @@ $((1+2))',
    "cat <<EOF\n@@ $(show @@)\nEOF\nshow @@",
    "(show @@) | cat; { show @@; }",
    "sh -c 'echo \"$1\"' sh @@",
    "show x > /dev/null @@; # @@\nshow y",
]
VALUES = [
    "plain",
    "two words",
    "",
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "\ntouch pwned\n",
    "a[$(touch pwned)]",
    "EOF\ntouch pwned\n",
    "*",
    "~",
    "-n",
    "\\",
    "ünï $x ${y} %s",
]


def run(shell: str, script: str, variables: dict[str, str], folder: Path) -> str:
    show = 'show() { for w in "$@"; do printf "<%s>" "$w"; done; }\n'
    options = ["-eo", "pipefail"] if shell == "bash" else ["-e"]
    done = subprocess.run(
        [shell, *options, "-c", show + script],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert not (folder / "pwned").exists(), script
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_no_value_becomes_code_in_a_real_shell(shell: str, script: str, tmp_path: Path) -> None:
    for value in VALUES:
        text, variables = script_for(written(script), {"params": {"x": value}})
        shown = run(shell, text, variables, tmp_path)
        if script == SCRIPTS[0]:
            assert shown == f"<{value}><end>"
        if script == SCRIPTS[1]:
            assert shown == f"<{value}><end>"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_list_reaches_a_real_shell_word_by_word(shell: str, tmp_path: Path) -> None:
    text, variables = script_for(written("show a @@ b"), {"params": {"x": VALUES}})
    assert run(shell, text, variables, tmp_path) == "<a>" + "".join(f"<{value}>" for value in VALUES) + "<b>"


FRAGMENTS = [
    *(
        "echo ",
        "cat ",
        "'",
        '"',
        '"',
        "$(",
        ")",
        "`",
        "${a:-",
        "}",
        "<<EOF\n",
        "\nEOF\n",
        "\n",
        "; ",
        "|",
        " && ",
        "|| ",
    ),
    *(
        "[[ ",
        " ]]",
        "((",
        "))",
        "$((",
        "a=(",
        "a[",
        "]",
        "]=1",
        "case x in ",
        "esac",
        "x)",
        ";;",
        "{ ",
        "; }",
        "if ",
        "then ",
    ),
    *(
        "; fi",
        "for i in ",
        "; do ",
        "; done",
        "# ",
        "\\",
        "eval ",
        "> f ",
        "<<'E'\n",
        "\nE\n",
        "bash ",
        "-c ",
        "<(",
        "@(",
        "$'",
    ),
    *(
        "export ",
        "declare -a ",
        "test -v ",
        "-eq 1 ",
        "= ",
        "== ",
        " ",
        "b",
        "f() ",
        "(",
        "<<< ",
        "$a",
        "!",
        "time ",
        "env ",
    ),
    *("A=", "${a}", "$@ ", "x ", "1", "-u ", *[X] * 20),
]


@pytest.mark.skipif("bash" not in SHELLS, reason="no bash here")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(
    st.lists(st.sampled_from(FRAGMENTS), min_size=2, max_size=12).map("".join).filter(lambda script: X in script),
    st.sampled_from(["$(touch pwned)", "a[$(touch pwned)]", "; touch pwned;", "' ; touch pwned ; '", "touch"]),
)
def test_no_script_that_is_let_through_runs_a_value(tmp_path: Path, script: str, value: str) -> None:
    if list(check_script(script)):
        return
    for given_value in (value, [value, "pwned"]):
        text, variables = script_for(script, {"params": {"x": given_value}})
        for shell in SHELLS:
            run(shell, text, variables, tmp_path)
