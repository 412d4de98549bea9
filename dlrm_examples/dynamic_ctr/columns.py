"""Jagged columns out of the arrays of a log. Shapes: E examples or events, N ids of a column."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dlrm_examples.dynamic_ctr.log import Jagged

Ids = npt.NDArray[np.int64]


class Events(NamedTuple):
    """What happened to whom when; three arrays (E,)."""

    user_ids: Ids
    times: Ids
    items: Ids


def lists(ids: Ids, lengths: Ids) -> Jagged:
    """``lengths`` (E,) ids per example out of ``ids`` (N,)."""
    return Jagged(torch.tensor(ids, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64))


def single(ids: Ids) -> Jagged:
    """One id per example."""
    return lists(ids, np.ones(len(ids), dtype=np.int64))


def side_by_side(columns: Sequence[Ids]) -> Jagged:
    """Several columns (E,) as one list per example."""
    return lists(np.stack(columns, axis=1).reshape(-1), np.full(len(columns[0]), len(columns), dtype=np.int64))


def hashed(name: str, texts: npt.ArrayLike) -> Ids:
    """(E,) 64-bit ids of the values of a category; the same in every run and on every machine."""
    different, place = np.unique(np.asarray(texts, dtype=np.str_), return_inverse=True)
    digests = [hashlib.blake2b(f"{name}={text}".encode(), digest_size=8).digest() for text in different]
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)[place]


def log_bucket(values: npt.NDArray[np.generic], *, per_doubling: int) -> Ids:
    """(E,) bucket of ``1 + values``, evenly wide on a logarithmic scale; negative values count as 0."""
    buckets: Ids = np.rint(per_doubling * np.log2(1 + np.maximum(values.astype(np.float64), 0))).astype(np.int64)
    return buckets


def first_of_each(keys: Sequence[Ids]) -> Ids:
    """Rows that are the first with their combination of ``keys`` (columns of E values), ascending."""
    order = np.lexsort(tuple(keys))
    return np.sort(order[_begins(*(key[order] for key in keys))])


def joined(side: Jagged, side_keys: Ids, keys: Ids) -> Jagged:
    """For each of ``keys`` (E,) the list of ``side`` that has this key in ``side_keys``; empty where none has.

    Raises:
        ValueError: a key is in ``side_keys`` twice.
    """
    order = np.argsort(side_keys, kind="stable")
    ordered = side_keys[order]
    if not _begins(ordered).all():
        raise ValueError(f"{ordered[~_begins(ordered)][0]} has more than one row")
    place = np.searchsorted(ordered, keys)
    found = np.flatnonzero(place < len(ordered))
    found = found[ordered[place[found]] == keys[found]]
    row = order[place[found]]
    lengths, first = np.zeros((2, len(keys)), dtype=np.int64)
    side_lengths = side.lengths.numpy()
    lengths[found] = side_lengths[row]
    first[found] = (np.cumsum(side_lengths) - side_lengths)[row]
    return lists(side.values.numpy()[_ranges(first, lengths)], lengths)


def recent_items(events: Events, *, max_items: int, num_asked: int) -> Jagged:
    """For each of the last ``num_asked`` events the last items of its user from before it, oldest first.

    Events of one user at the same time do not see each other, so no example is an input of its own prediction.

    Args:
        events: in any order; those of one user at one time are listed in the order given.
        max_items: length of the longest list.
        num_asked: events that get a list; those in front of them are only listed.
    """
    order = np.lexsort((events.times, events.user_ids))
    users, times = events.user_ids[order], events.times[order]
    place = np.arange(len(order))
    user_begin = np.maximum.accumulate(np.where(_begins(users), place, 0))
    time_begin = np.maximum.accumulate(np.where(_begins(users, times), place, 0))
    first, end = np.empty((2, len(order)), dtype=np.int64)
    end[order] = time_begin
    first[order] = np.maximum(user_begin, time_begin - max_items)
    asked = slice(len(order) - num_asked, None)
    lengths = (end - first)[asked]
    return lists(events.items[order][_ranges(first[asked], lengths)], lengths)


def _begins(*keys: Ids) -> npt.NDArray[np.bool_]:
    """(E,) where a row differs from the one before it in any of the keys; the first row does."""
    begins = np.ones(len(keys[0]), dtype=np.bool_)
    begins[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return begins


def _ranges(first: Ids, lengths: Ids) -> Ids:
    """``first[i], first[i] + 1, ...`` of ``lengths[i]`` numbers for each i, one after the other."""
    shift = np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    ranges: Ids = np.arange(len(shift)) + shift
    return ranges
