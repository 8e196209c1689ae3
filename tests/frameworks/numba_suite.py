"""numba-cuda's own test-suite, as its wheel carries it: each test and what became of it.

    numba_suite.py MODULE[,MODULE…]     modules below numba.cuda.tests, such as cudapy.test_atomics

Failures are part of what is compared: a test that fails natively must fail through Katydid, and no other may.
"""

import sys
import unittest

import numpy

from said import absent, need

# Releases of numba-cuda ask numpy for a name that later numpys have no more.
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack
need("numba_cuda")
try:
    import numba.cuda.tests
    import pytest
except ImportError as error:
    absent(f"the tests of numba cannot be imported: {error}")


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
    names = [f"numba.cuda.tests.{name}" for name in sys.argv[1].split(",")]
    suite = unittest.TestLoader().loadTestsFromNames(names)
    result = unittest.TextTestRunner(resultclass=Outcomes, verbosity=0).run(suite)
    for outcome, count in sorted(result.count.items()):
        print(f"version {outcome} {count}")


if __name__ == "__main__":
    main()
