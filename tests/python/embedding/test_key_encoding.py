# SPDX-License-Identifier: Apache-2.0
"""Encoded keys keep all bits of ids, table ids and counts."""

from __future__ import annotations

import pytest
import torch
from headway._embedding import keys_of, messages_of
from headway.embedding.keys import Keys


@pytest.mark.parametrize("num_keys", [0, 1, 2, 5])
@pytest.mark.parametrize("is_part", [False, True], ids=["alone", "among_others"])
def test_keys_come_out_of_messages_as_they_went_in(num_keys: int, is_part: bool) -> None:
    generator = torch.Generator().manual_seed(num_keys)
    ids, bits = (torch.randint(-(2**63), 2**63 - 1, (2, num_keys), generator=generator)).unbind()
    tables, counts = bits.to(torch.int32), (bits >> 32).to(torch.int32)
    messages = messages_of(Keys(ids, tables, counts=counts))
    assert (messages.shape, messages.dtype) == ((num_keys, 2), torch.int64)
    assert messages[:, 0].tolist() == ids.tolist()
    found = keys_of(torch.cat((messages, messages))[num_keys:] if is_part else messages)
    assert found.tables is not None and found.counts is not None
    assert found.ids.tolist() == ids.tolist()
    assert (found.tables.tolist(), found.counts.tolist()) == (tables.tolist(), counts.tolist())


def test_keys_of_one_table_have_its_number_in_their_messages() -> None:
    keys = Keys(torch.tensor([5, -1]), table=2**32 - 1, counts=torch.tensor([1, 7], dtype=torch.int32))
    found = keys_of(messages_of(keys))
    assert found.tables is not None and found.tables.tolist() == [-1, -1]


def test_keys_without_counts_and_other_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="have counts"):
        messages_of(Keys(torch.tensor([5])))
    for other in (torch.zeros(3, 3, dtype=torch.int64), torch.zeros(3, 2, dtype=torch.int32), torch.zeros(6)):
        with pytest.raises(ValueError, match="int64"):
            keys_of(other)
