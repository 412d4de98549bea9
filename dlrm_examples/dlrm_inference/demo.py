# SPDX-License-Identifier: Apache-2.0
"""Demo: DLRM inference on a few processes under one setting, with and without lag."""

from __future__ import annotations

import shlex
import sys

from dlrm_examples.dlrm_inference.command_line import make_parser
from dlrm_examples.dlrm_inference.comparison import EXPECTED_ERRORS, Comparison, chosen_format
from dlrm_examples.dlrm_inference.settings import SETTINGS
from dlrm_examples.support.command_line import program_name
from dlrm_examples.support.data.log_formats import detect_format

_MODULE = "dlrm_examples.dlrm_inference.demo"
_DESCRIPTION = f"""\
Answers click-prediction requests with a DLRM whose embedding tables are spread over several processes, and
compares three systems: synchronous DLRM, and bounded-lag DLRM over Gloo and over Headway. With a bound of k a
process that is ahead goes on for up to k steps before it waits for the others.

settings:
{chr(10).join(f"  {setting.name:<24}{setting.description}" for setting in SETTINGS.values())}

examples:
  {{program}}                                    4 processes, random delays, k = 0 to 4
  {{program}} --data train.txt --lag 0 2         your own log in Criteo's format
  {{program}} --setting straggler --ranks 2      one process is always slower
"""


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    program = program_name(_MODULE)
    parser = make_parser(program, _DESCRIPTION.format(program=program), default_out="out/demo", default_steps=60)
    parser.add_argument(
        "--setting", choices=tuple(SETTINGS), default="random_delays", help="see above (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    command = shlex.join([*program.split(), *(sys.argv[1:] if arguments is None else arguments)])
    try:
        comparison = Comparison(options)
        log = None
        if SETTINGS[options.setting].reads_log:
            path = options.data if options.data is not None else comparison.generated_log("criteo")
            log = comparison.load_log(path, chosen_format(options) if options.data is not None else detect_format(path))
        elif options.data is not None:
            parser.error(f"--data has no use with --setting {options.setting}, whose requests are random")
        return comparison.run([comparison.workload(options.setting, log)], command=command)
    except EXPECTED_ERRORS as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
