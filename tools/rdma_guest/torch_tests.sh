#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0

# In the guest: tests the collectives of the process group, and predictions of DLRM with every bound, over transport verbs.
# Usage: tools/rdma_guest/torch_tests.sh PYTHON
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
python=${1:?usage: tools/rdma_guest/torch_tests.sh PYTHON}
readonly min_packets=1000 # With fewer packets, the tests have not used verbs.

tools/rdma_guest/network.sh one || exit 1
export HEADWAY_TRANSPORT=verbs HEADWAY_RDMA_DEVICE=rxe0 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
# One process runs all tests, and ranks are forks of it: importing torch over 9p takes longer than the tests.
"$python" -m pytest -v -p no:cacheprovider --durations=5 \
  tests/c10d_backend/test_collectives.py \
  "tests/dlrm_examples/dlrm_inference/test_predictions.py::test_predictions_do_not_depend_on_the_bound_nor_on_the_ranks[2-9-True-headway]"
status=$?
packets=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)
echo "$packets packets went over rxe0"
if [ "$packets" -lt $min_packets ]; then
  echo "the tests did not use the device"
  exit 1
fi
exit $status
