import unittest
class Works(unittest.TestCase):
    def test_good(self): self.assertEqual(1, 1)
    @unittest.expectedFailure
    def test_bad(self): self.assertEqual(1, 2)
class Quiet(unittest.TextTestResult):
    def printErrors(self): print(self.testsRun, len(self.expectedFailures))
class Runner(unittest.TextTestRunner):
    def run(self, test):
        result = Quiet(self.stream, self.descriptions, self.verbosity)
        test(result); result.printErrors()
        return result
unittest.main(testRunner=Runner)
