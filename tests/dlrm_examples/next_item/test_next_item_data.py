# SPDX-License-Identifier: Apache-2.0
"""Histories from files, training windows, and ranks of items.

A window is a part of a user's history to train on. The last two items of a user are held out: the next to last one for
the validation, the last one for the test. A rank is the number of unseen items that score at least as high as the
target.
"""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
import torch
from headway.evaluation.full_ranking import quality_of, ranks_of

from dlrm_examples.next_item.batches import evaluation_batches, training_batches
from dlrm_examples.next_item.evaluation import evaluate, popularity_scores
from dlrm_examples.next_item.histories import Histories, read_histories
from dlrm_examples.support.data.log_format import DataError

CPU = torch.device("cpu")
HEADER = "userId,movieId,rating,timestamp"


def history(lengths: list[int]) -> Histories:
    """Makes items 0, 1, 2, ... over all users, one per minute."""
    items = torch.arange(sum(lengths))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Histories(items=items, times=items * 60, offsets=offsets, num_items=len(items))


def test_ratings_come_in_order_of_time_and_users_with_too_few_are_left_out(tmp_path: Path) -> None:
    lines = [
        "7,50,4.0,30",
        "7,40,4.0,10",
        "3,40,1.0,5",
        "3,50,1.0,6",
        "9,60,5,1",
        "9,40,5,3",
        "9,50,5,2",
        "7,70,4.0,20",
    ]
    path = tmp_path / "ratings.csv.gz"
    path.write_bytes(gzip.compress("\n".join([HEADER, *lines, ""]).encode()))
    for each in (path, tmp_path):
        read = read_histories(each)
        assert read.items.tolist() == [0, 3, 1, 2, 1, 0]  # Films 40, 50, 60, 70.
        assert read.times.tolist() == [10, 20, 30, 1, 2, 3]
        assert read.offsets.tolist() == [0, 3, 6]
        assert (read.num_users, read.num_items) == (2, 4)


def test_films_with_few_ratings_are_left_out_before_users_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    rows = [(user, film) for user in (1, 2) for film in (10, 20, 30)] + [(3, 10), (3, 20), (3, 40)]
    path.write_text("\n".join([HEADER, *(f"{user},{film},3,{film}" for user, film in rows), ""]))
    read = read_histories(path, min_count=2)
    assert (read.num_users, read.num_items, read.items.tolist()) == (2, 3, [0, 1, 2, 0, 1, 2])
    assert read_histories(path).num_users == 3


def test_ratings_of_one_second_do_not_come_in_the_order_of_films(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("\n".join([HEADER, *(f"1,{film},3,0" for film in range(50)), ""]))
    items = read_histories(path).items.tolist()
    assert sorted(items) == list(range(50)) != items
    assert read_histories(path).items.tolist() == items


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    with pytest.raises(DataError, match=r"no file ratings\*\.csv"):
        read_histories(tmp_path)
    path.write_text(f"{HEADER}\n1,2,3.0,4\n1,3,3.0,5\n")
    with pytest.raises(DataError, match=r"ratings\.csv: no user has 3 ratings"):
        read_histories(path)
    with pytest.raises(DataError, match=r"absent\.csv: .*No such file or directory"):
        read_histories(tmp_path / "absent.csv")
    path.write_text("userId,movieId,rating\n1,2,3.0\n")
    with pytest.raises(DataError, match=r"ratings\.csv: .*timestamp"):
        read_histories(path)


def test_each_pair_of_items_is_in_one_window_and_the_last_two_items_in_none() -> None:
    histories = history([3, 4, 25, 13])
    generator = torch.Generator().manual_seed(0)
    cuts = set()
    for _ in range(3):
        pairs: Counter[tuple[int, int]] = Counter()
        batches = list(training_batches(histories, max_length=6, batch_size=3, device=CPU, generator=generator))
        for batch in batches:
            lengths = batch.sequences.offsets.diff()
            assert 1 <= int(lengths.min()) <= int(lengths.max()) == batch.sequences.max_length <= 6
            assert len(lengths) <= 3
            pairs.update(zip(batch.items.tolist(), batch.next_items.tolist(), strict=True))
            assert batch.positions[batch.sequences.offsets[:-1]].tolist() == [0] * len(lengths)
            assert batch.sequences.times is not None and batch.sequences.query_times is not None
            assert batch.sequences.times.tolist() == (batch.items * 60).tolist()
            assert batch.sequences.query_times.tolist() == (batch.next_items * 60).tolist()
            cuts.update(batch.items[batch.sequences.offsets[:-1]].tolist())
        ends = [(0, 3), (3, 7), (7, 32), (32, 45)]
        assert pairs == Counter((i, i + 1) for begin, end in ends for i in range(begin, end - 3))
    assert len(cuts) > len(ends) + 4  # Other passes cut at other places.


def test_the_evaluation_asks_for_the_last_item_after_those_before_it() -> None:
    histories = history([3, 9])
    # `behind`: items of a user from the target to the end.
    for part, behind in (("validation", 2), ("test", 1)):
        (batch,) = evaluation_batches(histories, part, max_length=4, batch_size=8, device=CPU)  # type: ignore[arg-type]
        assert batch.next_items[batch.last_tokens()].tolist() == [3 - behind, 12 - behind]
        assert batch.items.tolist() == [*range(3 - behind), *range(8 - behind, 12 - behind)]


def test_ranks_leave_out_what_was_seen_and_count_equal_scores_against_the_wanted_item() -> None:
    scores = torch.tensor([[5.0, 4.0, 3.0, 3.0, 1.0]] * 3)
    seen = torch.zeros(3, 5, dtype=torch.bool)
    seen[1, [0, 2]] = True
    seen[2] = True
    assert ranks_of(scores, torch.tensor([2, 2, 4]), seen).tolist() == [3, 2, 0]


def test_scores_that_are_no_numbers_count_against_the_wanted_item() -> None:
    nan = float("nan")
    scores = torch.tensor([[nan] * 4, [1.0, 2.0, nan, 4.0], [nan, 2.0, 3.0, 4.0]])
    seen = torch.zeros(3, 4, dtype=torch.bool)
    seen[:, 1] = True
    assert ranks_of(scores, torch.tensor([0, 2, 3]), seen).tolist() == [2, 2, 1]


def test_no_rankings_have_no_quality() -> None:
    with pytest.raises(ValueError, match="there are no users"):
        quality_of(torch.tensor([], dtype=torch.int64))


def test_quality_is_that_of_the_first_ten() -> None:
    quality = quality_of(torch.tensor([0, 2, 9, 10]))  # Ranks count from 0, so 10 is not among the first ten.
    assert quality.hit_rate == 0.75
    assert quality.ndcg == pytest.approx((1 + 1 / 2 + 1 / 3.4594316) / 4)  # 1 / log2(rank + 2) each.
    assert quality.hit_rate_error == pytest.approx((0.75 * 0.25 / 4) ** 0.5)  # Standard error.


def test_popularity_knows_nothing_of_the_last_two_items(ratings: Path) -> None:
    histories = read_histories(ratings)
    assert int(histories.train_counts().sum()) == histories.items.shape[0] - 2 * histories.num_users
    quality = evaluate(popularity_scores(histories), histories, "test", max_length=1, device=CPU)
    assert quality.hit_rate < 0.7
