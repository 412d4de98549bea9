# SPDX-License-Identifier: Apache-2.0
"""Argument parser whose errors are one line."""

import argparse
from typing import NoReturn

USAGE_ERROR = 2


class OneLineParser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")
