# SPDX-License-Identifier: Apache-2.0
"""What a part of the tests came to, and the report at the end of all parts."""

import collections
import re
import xml.etree.ElementTree as ElementTree

# A log that is kept may be its tail only: what failed has to fit in there.
EXCERPT = 30    # lines of output for one failure
EXCERPTS = 120  # lines of output for all of them
NAMES = 40      # names of failures


class Sum:
    """What one part came to."""

    def __init__(self):
        self.passed = 0
        self.failed = []   # one line of text each
        self.skipped = []  # likewise: "name: reason"
        self.output = {}   # the lines around a failure, by that text

    def fail(self, what, output=''):
        """Output is the text around the failure, which ends with it."""
        self.failed.append(what)
        lines = output.rstrip().splitlines()
        self.output[what] = '\n'.join(lines[-EXCERPT:])

    def as_data(self):
        return dict(vars(self))

    @classmethod
    def from_data(cls, data):
        result = cls()
        vars(result).update(data)
        return result


def around(lines, number):
    """A line and what stands around it: most of it before."""
    return '\n'.join(lines[max(0, number - EXCERPT * 2 // 3):
                           number + EXCERPT // 3])


def read_tap(name, text, status, result, stderr=''):
    """Adds what a program that prints TAP printed. Status 77: all skipped."""
    plan, seen, failed = None, 0, 0
    lines = text.splitlines()
    for number, line in enumerate(lines):
        match = re.match(r'1\.\.(\d+)(?:\s*#\s*SKIP\s*(.*))?', line, re.I)
        if match:
            plan = int(match.group(1))
            if match.group(2) is not None:
                result.skipped.append('%s: %s' % (name, match.group(2)))
            continue
        match = re.match(r'(not )?ok\b\s*\d*\s*-?\s*([^#]*)(?:#\s*SKIP\s*(.*))?',
                         line, re.I)
        if match is None:
            continue
        seen += 1
        what = '%s: %s' % (name, match.group(2).strip())
        if match.group(3) is not None:
            result.skipped.append('%s: %s' % (what, match.group(3)))
        elif match.group(1):
            failed += 1
            result.fail(what, around(lines, number))
        else:
            result.passed += 1
    if status == 77 and plan == 0:
        return
    text += stderr
    if plan is None:
        result.fail('%s: ended without a plan, status %s' % (name, status),
                    text)
    elif plan != seen:
        result.fail('%s: %d of %d tests have a result, status %s'
                    % (name, seen, plan, status), text)
    elif plan == 0:
        result.fail('%s: no tests, status %s' % (name, status), text)
    elif status != 0 and not failed:
        result.fail('%s: status %s' % (name, status), text)


def essence(text):
    """The calls, their places and the error. pytest prints the source of each
    function around them, which fills the screen."""
    lines = [line for line in text.splitlines()
             if re.match(r'[>E] |\S+:\d+: ', line)]
    return '\n'.join(lines) or text


def read_junit(name, path, result):
    """Adds what pytest wrote into a file; returns the module of each test that
    it ran."""
    modules = []
    for case in ElementTree.parse(path).iter('testcase'):
        module = case.get('classname', '').split('.')[-1]
        modules.append(module)
        title = '%s::%s' % (module, case.get('name'))
        skip = case.find('skipped')
        bad = [b for b in (case.find('failure'), case.find('error'))
               if b is not None]
        if bad:
            result.fail('%s %s' % (name, title), essence(bad[0].text or ''))
        elif skip is not None:
            result.skipped.append('%s: %s' % (title, skip.get('message')))
        else:
            result.passed += 1
    return modules


def clip(text):
    """One line of bearable length: a parameter may be part of a test's name."""
    text = ' '.join(text.split())
    return text if len(text) <= 200 else text[:197] + '...'


def print_skipped(skipped):
    """A line for each reason: hundreds of tests may have the same."""
    reasons = collections.defaultdict(list)
    for text in skipped:
        name, _, reason = text.rpartition(': ')
        reasons[reason].append(name)
    for reason, names in sorted(reasons.items()):
        print(clip('skipped %d: %s (%s%s)' % (
            len(names), reason, names[0], ', ...' if names[1:] else '')))


def print_failed(sums):
    """Output first, names last: the end of a log is what is always kept."""
    failed = [(clip(what), s.output.get(what, ''))
              for _, s in sums for what in s.failed]
    left = EXCERPTS
    for what, output in failed:
        lines = output.splitlines()
        if lines and len(lines) <= left:
            left -= len(lines)
            print('\n--- %s' % what)
            print('\n'.join(line[:200] for line in lines))
    print()
    for what, _ in failed[:NAMES]:
        print('failed: %s' % what)
    if failed[NAMES:]:
        print('failed: and %d more' % len(failed[NAMES:]))


def report(sums):
    """Sums are pairs of a name and a Sum. Returns the status to end with."""
    passed = sum(s.passed for _, s in sums)
    failed = sum(len(s.failed) for _, s in sums)
    skipped = [text for _, s in sums for text in s.skipped]
    print()
    print_skipped(skipped)
    print('\n%-15s %7s %7s %8s' % ('part', 'passed', 'failed', 'skipped'))
    for name, s in sums:
        print('%-15s %7d %7d %8d' % (name, s.passed, len(s.failed),
                                     len(s.skipped)))
    if failed:
        print_failed(sums)
    print('%d passed, %d failed, %d skipped' % (passed, failed, len(skipped)))
    return 1 if failed or not passed else 0
