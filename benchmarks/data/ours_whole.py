"""ImageRecordIter with whole images decoded: what the package does without TurboJPEG."""

from ours import CASE, VERSION, iterate

CASES = {CASE: iterate("whole")}
__all__ = ["CASES", "VERSION"]
