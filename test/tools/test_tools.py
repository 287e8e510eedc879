# SPDX-License-Identifier: Apache-2.0
"""The tools that judge the rest are judged here: each breach that they look for
is planted, and each way in which a test program can lie about its result."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ.get('ONCE_BUILD', str(ROOT / 'build'))
SPDX = '/* SPDX-License-Identifier: Apache-2.0 */\n'


def load(name):
    loader = importlib.machinery.SourceFileLoader(
        'tool_' + name.replace('-', '_'), str(ROOT / 'tools' / name))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


style = load('style')
symbols = load('check-symbols')
tests = load('test')
docs = load('check-docs')


def breaches(path, text):
    return [what for _, what in style.check_file(path, text)]


@pytest.mark.parametrize('path, text, what', [
    ('src/calls/core/x.c', '', 'no SPDX line'),
    ('tools/x', '#!/bin/sh\n', 'no SPDX line'),
    ('src/calls/core/x.c', SPDX + '#include <time.h>\n', 'core does no I/O'),
    ('src/messages/core/x.c', SPDX + '#include <stdio.h>\n',
     'core does no I/O'),
    ('src/calls/core/x.c', SPDX + 'printf("x");\n', 'core does no I/O'),
    ('src/calls/core/x.c', SPDX + '#include "calls/http/http.h"\n',
     'arrows only go down'),
    ('src/calls/http/x.c', SPDX + '#include "ngx_core.h"\n', 'knows nginx'),
    ('src/calls/store/x.c', SPDX + '#include "../http/http.h"\n',
     'arrows only go down'),
    ('src/calls/call/x.c', SPDX + '#include "messages/core/row.h"\n',
     'arrows only go down'),
    ('src/messages/relay/x.c', SPDX + '#include "calls/http/http.h"\n',
     'arrows only go down'),
    ('src/base/redis/x.c', SPDX + '#include "calls/store/store.h"\n',
     'arrows only go down'),
    ('programs/console/x.c', SPDX + '#include "programs/once/cli.h"\n',
     'arrows only go down'),
    ('src/another/x.c', SPDX, 'does not name its folder'),
    ('src/calls/http/x.c', SPDX + 'ngx_str_t s;\n', 'knows nginx'),
    ('nginx/x.c', SPDX + 'strcpy(a, b);\n', 'strcpy() is not used'),
    ('programs/once/x.c', SPDX + 'int n = atoi (s);\n', 'atoi() is not used'),
])
def test_a_planted_breach_is_found(path, text, what):
    assert any(what in b for b in breaches(path, text))


@pytest.mark.parametrize('path, text', [
    ('src/calls/core/x.c', SPDX + '#include <once/once.h>\n#include <string.h>\n'),
    ('src/base/error.c', SPDX + '#include <stdio.h>\nvsnprintf(a, b, c, d);\n'),
    ('src/calls/store/x.c', SPDX + '#include "calls/core/transition.h"\n'
     '#include <sqlite3.h>\n'),
    ('src/calls/http/x.c', SPDX + '/* no ngx_str_t */ f("strcpy(");\n'),
    ('programs/once/x.c', SPDX + 'my_strcpy(a); int gets = 1;\n'),
    ('README.md', '# Once\n'),
])
def test_what_is_allowed_passes(path, text):
    assert breaches(path, text) == []


def test_a_file_that_nobody_builds_is_found():
    lists = ['src/calls/meson.build', 'test/meson.build']
    for path in ('src/calls/core/nobody.c', 'test/unit/test_nobody.c',
                 'programs/once/nobody.c'):
        assert [p for p, _ in style.check_lists(lists + [path])] == [path]
    known = ['src/calls/core/transition.c', 'test/unit/test_key.c', 'nginx/any.c']
    assert list(style.check_lists(lists + known)) == []


def test_a_tag_that_is_defined_twice_is_found(tmp_path, monkeypatch):
    for path, text in (('src/base/a.h', 'struct once__x { int a; };\n'),
                       ('src/client/b.h', 'enum once__x { B };\n'),
                       ('src/client/c.c', 'struct x { int a; };\n'),
                       ('src/base/d.c', 'struct x; /* struct once__x { */\n')):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(style, 'ROOT', str(tmp_path))
    found = list(style.check_tags(['src/base/a.h', 'src/base/d.c',
                                   'src/client/b.h', 'src/client/c.c']))
    assert [p for p, _ in found] == ['src/client/b.h']


def tap(text, status):
    result = tests.Sum()
    tests.read_tap('x', text, status, result)
    return result.passed, len(result.failed), len(result.skipped)


@pytest.mark.parametrize('text, status, sum_', [
    ('ok 1 - a\nok 2 - b\n1..2\n', 0, (2, 0, 0)),
    ('ok 1 - a\nnot ok 2 - b\n1..2\n', 1, (1, 1, 0)),
    ('ok 1 - a\nok 2 - b # SKIP no server\n1..2\n', 0, (1, 0, 1)),
    ('1..0 # SKIP no server\n', 77, (0, 0, 1)),
    # It lies, or died: never a pass alone.
    ('not ok 1 - a\n1..1\n', 0, (0, 1, 0)),
    ('ok 1 - a\n', 0, (1, 1, 0)),
    ('ok 1 - a\n1..2\n', 0, (1, 1, 0)),
    ('ok 1 - a\n1..1\n', 134, (1, 1, 0)),
    ('ok 1 - a\n1..1\n', 'time-out', (1, 1, 0)),
    ('1..0\n', 0, (0, 1, 0)),
    ('', 0, (0, 1, 0)),
    ('', 77, (0, 1, 0)),
])
def test_a_test_program_cannot_lie(text, status, sum_):
    assert tap(text, status) == sum_


def pytest_folder(tmp_path, **selection):
    """What a part comes to whose two files have a test each, one of memory."""
    (tmp_path / 'test_a.py').write_text('def test_it():\n    pass\n')
    (tmp_path / 'test_b.py').write_text('def test_memory():\n    pass\n')
    result = tests.Sum()
    tests.part_pytest(str(tmp_path), result, os.environ, **selection)
    return result.passed, [what.rpartition(': ')[2] for what in result.failed]


@pytest.mark.parametrize('selection, sum_', [
    ({}, (2, [])),
    ({'leave_out': 'memory'}, (1, [])),
    ({'files': ['test_a', 'test_b']}, (2, [])),
    ({'files': ['test_a', 'test_b'], 'leave_out': 'memory'},
     (1, ['test_b selects no test'])),
    ({'files': ['test_a', 'test_z']},
     (0, ['no tests, status 5', 'test_a selects no test',
          'test_z selects no test'])),
])
def test_a_file_that_gives_no_test_has_failed(tmp_path, selection, sum_):
    assert pytest_folder(tmp_path, **selection) == sum_


def test_a_name_that_meson_does_not_know_has_failed():
    result = tests.Sum()
    # Another log than that of the part.
    tests.part_meson(BUILD, 'once:unit', 5, result, os.environ, ('key', 'keys'))
    assert result.passed > 1
    assert result.failed == ['once:unit: keys selects no test']


@pytest.mark.parametrize('name', tests.QUICK['gateway'])
def test_make_check_runs_tests_of_each_file(name):
    done = subprocess.run(
        [tests.PYTHON, '-m', 'pytest', '--collect-only', '-q', '-p',
         'no:cacheprovider', '-k', 'not memory', 'test/gateway/%s.py' % name],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0 and 'gateway/%s.py::' % name in done.stdout


def test_make_check_runs_tests_that_meson_knows():
    listed = subprocess.run(
        ['meson', 'introspect', '--tests', BUILD], capture_output=True,
        check=True, timeout=60).stdout
    known = {(test['suite'][0].rpartition(':')[2], test['name'])
             for test in json.loads(listed)}
    for suite in 'conformance', 'proof':
        assert {(suite, name) for name in tests.QUICK[suite]} <= known


def test_a_report_without_a_pass_is_a_failure(capsys):
    assert tests.report([('x', tests.Sum())]) == 1
    assert capsys.readouterr().out.endswith('0 passed, 0 failed, 0 skipped\n')


def test_failures_stand_at_the_end_with_what_was_printed(capsys):
    result = tests.Sum()
    tests.read_tap('x', 'ok 1 - a\n#  here: 3, not 4\nnot ok 2 - b\n1..2\n', 1,
                   result)
    assert tests.report([('x', result)]) == 1
    out = capsys.readouterr().out
    assert '#  here: 3, not 4\nnot ok 2 - b\n' in out
    assert out.endswith('failed: x: b\n1 passed, 1 failed, 0 skipped\n')


def test_many_failures_leave_room_for_their_names(capsys):
    result = tests.Sum()
    for n in range(100):
        result.fail('x: %d' % n, 'line\n' * 1000)
    tests.report([('x', result)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 200 and 'failed: x: 0' in lines
    assert lines[-2:] == ['failed: and 60 more',
                          '0 passed, 100 failed, 0 skipped']


def test_what_was_left_out_is_one_line_for_each_reason(capsys):
    result = tests.Sum()
    result.passed = 1
    result.skipped = ['t::%d: no server' % n for n in range(700)]
    assert tests.report([('x', result)]) == 0
    out = capsys.readouterr().out
    assert 'skipped 700: no server (t::0, ...)\n' in out
    assert out.count('no server') == 1


def test_a_part_that_dies_has_failed(tmp_path, capsys):
    def die(result):
        result.passed += 1
        raise RuntimeError('no more')

    parts = [tests.Part('dies', 1, die),
             tests.Part('lives', 1, lambda r: r.fail('lives: x', 'why'))]
    sums = dict(tests.run_parts(parts, str(tmp_path), 1))
    assert sums['dies'].passed == 0 and len(sums['dies'].failed) == 1
    assert sums['lives'].failed == ['lives: x']
    out = capsys.readouterr().out
    assert 'RuntimeError: no more' in out and '=== lives took' in out


def test_a_symbol_too_many_and_one_too_few_are_found():
    assert symbols.compare('a', {'x', 'y'}, 'b', {'y', 'z'}) == 2
    assert symbols.compare('a', {'x'}, 'b', {'x'}) == 0
    assert symbols.compare('a', set(), 'b', set()) == 1


def test_the_headers_declare_what_is_known_to_be_there():
    assert {'once_text', 'once_claim_start', 'once_attempt_record',
            'once_store_open'} <= symbols.declared(lambda header: True)


def test_a_link_and_a_command_that_lead_nowhere_are_found():
    page = str(ROOT / 'CONTRIBUTING.md')
    assert list(docs.check_links(page, 'see [it](nowhere.md)\n'))
    assert list(docs.check_links(page, 'see [it](#no-such-heading)\n'))
    assert list(docs.check_commands('    make nothing\n', docs.targets()))
    assert not list(docs.check_links(page, 'see [it](SECURITY.md#report)\n'))
    assert not list(docs.check_commands('    make test\n', docs.targets()))


def test_pages_of_the_package_lead_somewhere(tmp_path):
    """debian/rules does the same, and stops where a link leads nowhere."""
    for line in (ROOT / 'debian/once-doc.install').read_text().splitlines():
        what, to = line.split()
        folder = tmp_path / pathlib.Path(to).relative_to('usr/share/doc/once-doc')
        folder.mkdir(exist_ok=True)
        if (ROOT / what).is_dir():
            shutil.copytree(ROOT / what, folder / pathlib.Path(what).name)
        else:
            shutil.copy(ROOT / what, folder)
    done = subprocess.run([ROOT / 'tools/package-docs', tmp_path],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and ' 0 broken' in done.stdout, done
    text = (tmp_path / 'docs/README.md').read_text()
    assert '[protocol.md](protocol.md)' in text
    assert 'CONTRIBUTING.md (in the sources)' in text


def test_the_runbooks_that_are_installed_alone_lead_somewhere(tmp_path):
    shutil.copy(ROOT / 'docs/runbooks.md', tmp_path)
    done = subprocess.run([ROOT / 'tools/check-docs', tmp_path],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0 and '1 pages, 0 broken' in done.stdout, done


# ---- Manual pages and circles -----------------------------------------------------

man_page = load('man-page')
circles = load('check-circles')

HEADERS = sorted((ROOT / 'include/once').glob('*.h'))


def pages_of(folder):
    for header in HEADERS:
        text, names = man_page.roff(str(header))
        page = folder / (man_page.page_of(str(header)) + '.3')
        page.write_text(text)
        yield page, names


def test_each_exported_function_is_in_a_page(tmp_path):
    described = set()
    for page, names in pages_of(tmp_path):
        text = page.read_text()
        for name in names:
            heading = re.search(r'^\.SS "(.*\b%s\(\).*)"$' % name, text, re.M)
            assert heading, name
        described |= set(names)
    maps = ['src/once.map'] + [m for m, _ in symbols.LIBRARIES.values()]
    assert described == set().union(*map(symbols.mapped, maps))


def test_each_function_says_something(tmp_path):
    """Below its heading and its prototype there is text."""
    for page, names in pages_of(tmp_path):
        for part in page.read_text().split('\n.SS "')[1:]:
            title, _, rest = part.partition('\n')
            if '()' in title:
                after = rest.split('.fi', 1)[1].split('.SH')[0]
                text = [line for line in after.split('\n')
                        if line and not line.startswith('.')]
                assert text, (page.name, title)


def test_a_page_has_the_date_of_what_is_built(monkeypatch):
    def head():
        text, _ = man_page.roff(str(HEADERS[0]))
        return re.search(r'^\.TH \S+ 3 "([^"]*)"', text, re.M).group(1)

    monkeypatch.delenv('SOURCE_DATE_EPOCH', raising=False)
    assert re.fullmatch(r'20\d\d-\d\d-\d\d', head())
    monkeypatch.setenv('SOURCE_DATE_EPOCH', '86400')
    assert head() == '1970-01-02'


@pytest.mark.skipif(shutil.which('groff') is None, reason='no groff')
def test_groff_warns_of_nothing(tmp_path):
    for page, _ in pages_of(tmp_path):
        done = subprocess.run(['groff', '-man', '-Tutf8', '-ww', '-z', page],
                              capture_output=True, text=True, check=True)
        assert done.stderr == '', page.name


def test_the_parts_of_a_comment_are_distinguished():
    text = man_page.prose(man_page.comment_text([
        '/*', ' * Does `x`. Returns', ' *   ONCE_OK      It did,',
        ' *                and said so.', ' *   ONCE_EINVAL  No.', ' *',
        ' *      a --> b', ' * After it.', ' */']))
    assert text == ['Does \\fIx\\fR. Returns', '.TP', '\\fBONCE_OK\\fR',
                    'It did,', 'and said so.', '.TP', '\\fBONCE_EINVAL\\fR',
                    'No.', '.PP', '.PP', '.nf', '.RS 4', 'a \\-\\-> b', '.RE',
                    '.fi', '.PP', 'After it.']


def test_circles_are_found():
    a, b, c = 'abc'
    assert circles.ordered({a: {b}, b: {c}, c: set()}) == ([[c], [b], [a]], {})
    order, left = circles.ordered({a: {b}, b: {c}, c: {b}})
    assert order == [] and set(left) == {a, b, c}
    assert circles.shortest(left, b) == [b, c, b]
    assert circles.shortest(left, a) is None


def test_the_limit_of_a_part_grows_with_the_load(monkeypatch):
    """One of 0.2 s outlives half a second on a machine that is busy."""
    monkeypatch.setattr(tests.patience, 'stretch', lambda: 1000.0)
    monkeypatch.setattr(tests.patience.Patience.__init__, '__defaults__',
                        (tests.time.monotonic, tests.patience.stretch))
    assert tests.run(['sleep', '0.5'], timeout=0.2)[0] == 0
    monkeypatch.setattr(tests.patience.Patience.__init__, '__defaults__',
                        (tests.time.monotonic, lambda: 1.0))
    status, out = tests.run(['sh', '-c', 'echo begun; exec sleep 1000'],
                            timeout=0.2, quiet=True)
    assert status.startswith('time-out after') and out == 'begun\n'
