"""numba-cuda's own test-suite, as its wheel carries it: each test and what became of it.

    numba_suite.py MODULE[,MODULE…]     modules below numba.cuda.tests, such as cudapy.test_atomics

Failures are part of what is compared: a test that fails natively must fail through Katydid, and no other may. Of a long
module a part is run, evenly out of all of it.
"""

import importlib
import os
import sys
import types
import unittest

import numpy

from said import absent, need, of_katydid

# Tests of a module at most: a machine with a GPU is had for minutes.
MOST = 16

# What the tests import and the machine may lack (cffi), as a pack carries it. The machine's own comes first.
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "packages"))

# Releases of numba-cuda ask numpy for a name that later numpys have no more.
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack
need("numba_cuda")


def stand_in():
    """What the tests import to compare texts of compiled code is on few machines: a test that uses it is skipped."""

    def skip(*_, **__):
        raise unittest.SkipTest("there is no filecheck")

    names = {"matcher": ["Matcher"], "options": ["Options"], "parser": ["Parser", "pattern_for_opts"], "finput": ["FInput"]}
    for module, members in names.items():
        made = types.ModuleType(f"filecheck.{module}")
        for member in members:
            setattr(made, member, skip)
        sys.modules[made.__name__] = made
    sys.modules["filecheck"] = types.ModuleType("filecheck")


try:
    import filecheck
except ImportError:
    stand_in()
try:
    import numba.cuda.tests
    import numba.cuda.testing
except ImportError as error:
    absent(f"the tests of numba cannot be imported: {error}")


def each(suite):
    """The tests of a suite of suites, in its order."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from each(part)
        else:
            yield part


def some(name):
    """At most MOST tests of a module; none of one that wants what the machine lacks."""
    try:
        module = importlib.import_module(f"numba.cuda.tests.{name}")
    except ImportError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return []
    tests = list(each(unittest.defaultTestLoader.loadTestsFromModule(module)))
    count = min(MOST, len(tests))
    return [tests[at * len(tests) // count] for at in range(count)]


class Outcomes(unittest.TestResult):
    """Says what became of each test."""

    def __init__(self, stream, descriptions, verbosity):
        super().__init__(stream, descriptions, verbosity)
        self.count = {}

    def say(self, test, outcome):
        self.count[outcome] = self.count.get(outcome, 0) + 1
        print(f"same {test.id().removeprefix('numba.cuda.tests.')} {outcome}", flush=True)

    def addSuccess(self, test):
        self.say(test, "passed")

    def addExpectedFailure(self, test, error):
        self.say(test, "passed")

    def addSkip(self, test, reason):
        self.say(test, "skipped")

    def addUnexpectedSuccess(self, test):
        self.say(test, "failed")

    def addFailure(self, test, error):
        self.say(test, "failed")
        print(self._exc_info_to_string(error, test), file=sys.stderr)

    def addError(self, test, error):
        self.addFailure(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(test, error)


def main():
    tests = [test for name in sys.argv[1].split(",") for test in some(name)]
    if not tests:
        absent("no module can be imported")
    result = unittest.TextTestRunner(resultclass=Outcomes, verbosity=0).run(unittest.TestSuite(tests))
    assert result.count.get("passed", 0) > len(tests) // 2, f"of {len(tests)} tests: {result.count}"
    of_katydid()
    for outcome, count in sorted(result.count.items()):
        print(f"version {outcome} {count}")


if __name__ == "__main__":
    main()
