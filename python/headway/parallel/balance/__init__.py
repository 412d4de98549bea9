# SPDX-License-Identifier: Apache-2.0
"""Balanced sequences: samples move between ranks before a step, so that all ranks have about the same work.

::

    steps = BalancedSteps(iter(reader), plan=BalancePlan(mode="fixed"), schema=schema, group=group)
    for step in steps:
        ...
"""

from headway.parallel.balance.balanced_steps import BalancedSteps
from headway.parallel.balance.described import Spread
from headway.parallel.balance.plan import BalancePlan
from headway.parallel.balance.sample_exchange import BalanceError, SampleExchange
from headway.parallel.balance.sample_weight import SampleWeight
from headway.parallel.balance.step_sources import StepBudget

__all__ = ["BalanceError", "BalancePlan", "BalancedSteps", "SampleExchange", "SampleWeight", "Spread", "StepBudget"]
