# SPDX-License-Identifier: Apache-2.0
"""Grid: all settings on all datasets, as in section VI.B of the paper on bounded lag (arXiv 2512.19342)."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from dlrm_examples.dlrm_inference.command_line import make_parser
from dlrm_examples.dlrm_inference.comparison import EXPECTED_ERRORS, Comparison, chosen_format
from dlrm_examples.dlrm_inference.plan import Workload
from dlrm_examples.dlrm_inference.settings import SETTINGS
from dlrm_examples.support.command_line import program_name
from dlrm_examples.support.data.ali_ccp import ALI_CCP
from dlrm_examples.support.data.criteo import CRITEO
from dlrm_examples.support.data.log_format import LogFormat

_MODULE = "dlrm_examples.dlrm_inference.grid"
_DESCRIPTION = """\
Runs the comparison of the demo under every setting: random delays, heterogeneous lookups, one straggler and
perfect balance on Criteo, and balance on Ali-CCP as well. Without --data and --ali-ccp, synthetic logs are written.
"""


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    program = program_name(_MODULE)
    parser = make_parser(program, _DESCRIPTION, default_out="out/dlrm", default_steps=200)
    parser.add_argument(
        "--settings", nargs="+", choices=tuple(SETTINGS), default=list(SETTINGS), help="which to run (default: all)"
    )
    parser.add_argument(
        "--ali-ccp", type=Path, metavar="DIR", help="directory of Ali-CCP (default: a generated log of that format)"
    )
    parser.add_argument("--no-ali-ccp", action="store_true", help="leave Ali-CCP out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well, one line a point")
    options = parser.parse_args(arguments)
    if options.no_ali_ccp and options.ali_ccp is not None:
        parser.error("--ali-ccp and --no-ali-ccp exclude each other")
    if options.data is not None and chosen_format(options) is not CRITEO:
        parser.error("--data is for a log in Criteo's format; Ali-CCP's directory goes to --ali-ccp")
    command = shlex.join([*program.split(), *(sys.argv[1:] if arguments is None else arguments)])
    try:
        comparison = Comparison(options)
        workloads = _make_workloads(comparison, options.settings, options.data, options.ali_ccp, options.no_ali_ccp)
        return comparison.run(workloads, command=command, json_path=options.json)
    except EXPECTED_ERRORS as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130


def _make_workloads(
    comparison: Comparison, settings: list[str], criteo: Path | None, ali_ccp: Path | None, no_ali_ccp: bool
) -> list[Workload]:
    workloads = []
    for name in dict.fromkeys(settings):
        if not SETTINGS[name].reads_log:
            workloads.append(comparison.workload(name, None))
            continue
        workloads.append(_log_workload(comparison, name, criteo, CRITEO))
        if name == "balanced" and not no_ali_ccp:
            workloads.append(_log_workload(comparison, name, ali_ccp, ALI_CCP))
    return workloads


def _log_workload(comparison: Comparison, setting: str, path: Path | None, log_format: LogFormat) -> Workload:
    source = path if path is not None else comparison.generated_log(log_format.name)
    return comparison.workload(setting, comparison.load_log(source, log_format))


if __name__ == "__main__":
    sys.exit(main())
