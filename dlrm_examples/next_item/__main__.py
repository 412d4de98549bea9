# SPDX-License-Identifier: Apache-2.0
"""Trains models to predict the film that a user rates next, and ranks all films for each user's last rating."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from headway.training import LossError

from dlrm_examples.next_item.command_line import make_parser, settings_of
from dlrm_examples.next_item.evaluation import evaluate, popularity_scores
from dlrm_examples.next_item.histories import MIN_RATINGS, Histories, read_histories
from dlrm_examples.next_item.results import POPULARITY, Run, json_row, params_of, report
from dlrm_examples.next_item.trainer import train
from dlrm_examples.support.data.log_format import DataError
from dlrm_examples.support.provenance import write_json_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = make_parser(__doc__)
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except (DataError, LossError, ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    return 0


def _run(options: argparse.Namespace) -> None:
    """Reads the histories, trains every model with every seed, and reports."""
    models = list(dict.fromkeys(options.model))
    if options.attention is not None and models == ["sasrec"]:
        raise ValueError("--attention is an option of hstu, and --model has none")
    device = _device_of(options.device)
    model_settings, training = settings_of(options)
    attention = options.attention or "kernel"
    histories = read_histories(options.data, min_count=options.min_count)
    if int(histories.offsets.diff().max()) <= MIN_RATINGS:
        raise DataError(f"{options.data}: no user has more than {MIN_RATINGS} ratings: there is nothing to learn from")
    _say(f"{histories.num_users} users, {histories.num_items} films, {histories.items.shape[0]} ratings")
    runs = [_popularity(histories, device)]
    for name in models:
        for seed in range(options.seeds):
            trained = train(
                name,
                histories,
                model_settings,
                training,
                attention=attention,
                device=device,
                seed=seed,
                say=_say,
            )
            runs.append(Run(system=name, seed=seed, validation=trained.validation, test=trained.test, trained=trained))
    _say(report(runs))
    if options.out is not None:
        params = params_of(
            model_settings, training, attention=attention, device=options.device, min_count=options.min_count
        )
        write_json_lines(options.out, (json_row(params, run) for run in runs))


def _device_of(name: str) -> torch.device:
    """Returns the device of that name, after a test allocation.

    Raises:
        ValueError: this host has no such device.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def _popularity(histories: Histories, device: torch.device) -> Run:
    score = popularity_scores(histories)
    validation, test = (
        evaluate(score, histories, part, max_length=1, device=device) for part in ("validation", "test")
    )
    return Run(system=POPULARITY, seed=None, validation=validation, test=test)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the tensors of a batch are too small for several threads
    sys.exit(main())
