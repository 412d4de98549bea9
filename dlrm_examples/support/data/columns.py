# SPDX-License-Identifier: Apache-2.0
"""Builds jagged columns from the arrays of a log.

Idea: all operations sort with numpy and work on whole arrays, without a loop over examples. A sorted array is cut into
runs of equal keys (_run_starts()), and a jagged result gathers one range of the sorted array per example (_ranges()).

Example (recent_items, max_items = 2): user 1 saw items a, b, c at times 1, 2, 2. Sorted by user and time, b and c share
one time. The lists are [] for a, [a] for b and [a] for c: events at the same time do not see each other.

Invariants: sorts are stable, so equal keys keep their order. Ids stay int64; none passes through a float.
Complexity: O(E log E) time, O(E + N) memory.

Shapes: E examples or events, N ids of a column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dlrm_examples.support.data.log import Jagged

Ids = npt.NDArray[np.int64]


class Events(NamedTuple):
    """Events: user, time and item; three arrays (E,)."""

    user_ids: Ids
    times: Ids
    items: Ids


def lists(ids: Ids, lengths: Ids) -> Jagged:
    """Jagged column: ``ids`` (N,) split into lists of ``lengths`` (E,)."""
    return Jagged(torch.tensor(ids, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64))


def single(ids: Ids) -> Jagged:
    """Jagged column with one id per example."""
    return lists(ids, np.ones(len(ids), dtype=np.int64))


def side_by_side(columns: Sequence[Ids]) -> Jagged:
    """Combines several columns (E,) into one list per example."""
    return lists(np.stack(columns, axis=1).reshape(-1), np.full(len(columns[0]), len(columns), dtype=np.int64))


def hashed(name: str, texts: npt.ArrayLike) -> Ids:
    """Hashes the values of a category to (E,) 64-bit ids, equal in all runs and on all machines."""
    unique, inverse = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    digests = [hashlib.blake2b(f"{name}={text}".encode(), digest_size=8).digest() for text in unique]
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)[inverse]


def log_bucket(values: npt.NDArray[np.generic], *, per_doubling: int) -> Ids:
    """(E,) logarithmic buckets of ``1 + values``: ``per_doubling`` per factor of 2. Negative values count as 0."""
    buckets: Ids = np.rint(per_doubling * np.log2(1 + np.maximum(values.astype(np.float64), 0))).astype(np.int64)
    return buckets


def first_of_each(keys: Sequence[Ids]) -> Ids:
    """Indices of the first row with each combination of ``keys`` (columns of E values), ascending."""
    order = np.lexsort(tuple(keys))
    return np.sort(order[_run_starts(*(key[order] for key in keys))])


def joined(side: Jagged, side_keys: Ids, keys: Ids) -> Jagged:
    """Left join: for each of ``keys`` (E,) the list of ``side`` with this key in ``side_keys``; empty if there is none.

    Raises:
        ValueError: ``side_keys`` has duplicates.
    """
    order = np.argsort(side_keys, kind="stable")
    ordered = side_keys[order]
    if not _run_starts(ordered).all():
        raise ValueError(f"{ordered[~_run_starts(ordered)][0]} has more than one row")
    index = np.searchsorted(ordered, keys)
    found = np.flatnonzero(index < len(ordered))
    found = found[ordered[index[found]] == keys[found]]
    row = order[index[found]]
    lengths, first = np.zeros((2, len(keys)), dtype=np.int64)
    side_lengths = side.lengths.numpy()
    lengths[found] = side_lengths[row]
    first[found] = (np.cumsum(side_lengths) - side_lengths)[row]
    return lists(side.values.numpy()[_ranges(first, lengths)], lengths)


def recent_items(events: Events, *, max_items: int, num_asked: int) -> Jagged:
    """Lists the previous items of the user for each of the last ``num_asked`` events, oldest first.

    Events of one user at the same time do not see each other, so no example is an input of its own prediction.

    Args:
        events: in any order. Events of one user at one time keep the given order in the lists.
        max_items: longest list; older items are dropped.
        num_asked: number of events that get a list. Earlier events only appear in lists.
    Raises:
        ValueError: there are fewer events than ``num_asked``.
    """
    if not 0 <= num_asked <= len(events.times):
        raise ValueError(f"{num_asked} events are to get a list, and there are {len(events.times)}")
    order = np.lexsort((events.times, events.user_ids))
    users, times = events.user_ids[order], events.times[order]
    index = np.arange(len(order))
    user_begin = np.maximum.accumulate(np.where(_run_starts(users), index, 0))
    time_begin = np.maximum.accumulate(np.where(_run_starts(users, times), index, 0))
    first, end = np.empty((2, len(order)), dtype=np.int64)
    end[order] = time_begin
    first[order] = np.maximum(user_begin, time_begin - max_items)
    asked = slice(len(order) - num_asked, None)
    lengths = (end - first)[asked]
    return lists(events.items[order][_ranges(first[asked], lengths)], lengths)


def _run_starts(*keys: Ids) -> npt.NDArray[np.bool_]:
    """(E,) bool: True if a row differs from the previous row in any of the keys; True for the first row."""
    starts = np.ones(len(keys[0]), dtype=np.bool_)
    starts[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return starts


def _ranges(first: Ids, lengths: Ids) -> Ids:
    """Concatenates the ranges ``first[i]`` to ``first[i] + lengths[i] - 1``. Example: [5, 0], [2, 3] give 5 6 0 1 2."""
    shift = np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    ranges: Ids = np.arange(len(shift)) + shift
    return ranges
